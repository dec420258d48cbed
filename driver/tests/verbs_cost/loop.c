/* What a C program does to post WRITEs in chains and to take their completions. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHAIN = 16, WCS = 32 };

int provider_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
int provider_poll_cq(struct ibv_cq *, int, struct ibv_wc *);

static unsigned char memory[1 << 16];

int main(int argc, char **argv)
{
    static struct ibv_context context;
    static struct ibv_qp qp = {.context = &context};
    static struct ibv_cq cq = {.context = &context};
    struct ibv_send_wr wrs[CHAIN], *bad;
    struct ibv_sge sges[CHAIN];
    struct ibv_wc wcs[WCS];
    uint64_t sequence = 0, completions = 0;
    if (argc != 4)
        return 2;
    unsigned long rounds = strtoul(argv[1], NULL, 10);
    uint32_t length = (uint32_t)strtoul(argv[2], NULL, 10);
    unsigned every = (unsigned)strtoul(argv[3], NULL, 10);
    context.ops.post_send = provider_post_send;
    context.ops.poll_cq = provider_poll_cq;
    while (rounds--) {
        for (unsigned i = 0; i < CHAIN; i++) {
            sges[i] = (struct ibv_sge){
                .addr = (uintptr_t)memory + 64 * i,
                .length = length,
                .lkey = 7,
            };
            wrs[i] = (struct ibv_send_wr){
                .wr_id = ++sequence,
                .next = i + 1 < CHAIN ? &wrs[i + 1] : NULL,
                .sg_list = &sges[i],
                .num_sge = 1,
                .opcode = IBV_WR_RDMA_WRITE,
                .send_flags = ((i + 1) % every ? 0 : IBV_SEND_SIGNALED) | (length <= 256 ? IBV_SEND_INLINE : 0),
                .wr.rdma = {.remote_addr = 0x100000 + 64 * i, .rkey = 9},
            };
        }
        if (ibv_post_send(&qp, wrs, &bad))
            return 1;
        int count;
        while ((count = ibv_poll_cq(&cq, WCS, wcs)) > 0)
            for (int i = 0; i < count; i++) {
                if (wcs[i].status != IBV_WC_SUCCESS)
                    return 1;
                completions += wcs[i].wr_id;
            }
    }
    printf("%llu\n", (unsigned long long)completions);
    return 0;
}
