/* The part of a device's driver that the data path calls: it builds work queue elements in a ring, and hands out
 * completions. Both programs that are compared call it. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>

enum { SLOTS = 256, INLINE_MAX = 256 };

struct element {
    uint32_t opcode, flags;
    uint64_t wr_id, remote;
    uint32_t rkey, length;
    uint64_t local;
    uint32_t lkey;
    unsigned char inlined[INLINE_MAX];
};

static struct element ring[SLOTS];
static uint64_t done[SLOTS];
static unsigned produced, completed, polled;
static volatile unsigned doorbell;

int provider_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    (void)qp;
    (void)bad;
    for (; wr; wr = wr->next) {
        struct element *element = &ring[produced++ % SLOTS];
        element->opcode = wr->opcode;
        element->flags = wr->send_flags;
        element->wr_id = wr->wr_id;
        element->remote = wr->wr.rdma.remote_addr;
        element->rkey = wr->wr.rdma.rkey;
        element->length = wr->sg_list[0].length;
        if (wr->send_flags & IBV_SEND_INLINE) {
            memcpy(element->inlined, (void *)(uintptr_t)wr->sg_list[0].addr, wr->sg_list[0].length);
        } else {
            element->local = wr->sg_list[0].addr;
            element->lkey = wr->sg_list[0].lkey;
        }
        if (wr->send_flags & IBV_SEND_SIGNALED)
            done[completed++ % SLOTS] = wr->wr_id;
    }
    doorbell = produced;
    return 0;
}

int provider_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
    int count = 0;
    (void)cq;
    for (; count < room && polled != completed; count++, polled++) {
        wc[count].wr_id = done[polled % SLOTS];
        wc[count].status = IBV_WC_SUCCESS;
        wc[count].opcode = IBV_WC_RDMA_WRITE;
        wc[count].qp_num = 1;
    }
    return count;
}
