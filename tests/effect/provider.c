/*
 * A device that is none: its operations note how they were called, and answer what they are told to.
 *
 * The functions whose names begin with c_ call a verb as a C program does, through the macros and inline functions of
 * the header. The test calls them and their counterparts in Rust, and compares what the device has seen.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <infiniband/verbs.h>

enum { CALLS_MAX = 4, ARGUMENTS_MAX = 6 };

struct call {
	char function[32];
	uint64_t arguments[ARGUMENTS_MAX];
};

static struct call calls[CALLS_MAX];
static int call_count;
static int64_t answer;
static int answer_errno;

/* From now on calls get this answer, and set errno unless it is 0. */
void device_answers(int64_t value, int error)
{
	memset(calls, 0, sizeof(calls));
	call_count = 0;
	answer = value;
	answer_errno = error;
}

int device_calls(const struct call **seen)
{
	*seen = calls;
	return call_count;
}

static int64_t note(const char *function, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	if (call_count < CALLS_MAX) {
		struct call *call = &calls[call_count];

		strncpy(call->function, function, sizeof(call->function) - 1);
		memcpy(call->arguments, (uint64_t[]){ a, b, c, d, e, f }, sizeof(call->arguments));
	}
	call_count++;
	if (answer_errno)
		errno = answer_errno;
	return answer;
}

#define P(pointer) ((uint64_t)(uintptr_t)(pointer))

/* --- The device's operations ---------------------------------------------------------------------------------- */

static int op_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	*bad_wr = wr->next;
	return note("post_send", P(qp), P(wr), P(bad_wr), wr->wr_id, wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
}

static int op_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	*bad_wr = wr->next;
	return note("post_recv", P(qp), P(wr), P(bad_wr), wr->wr_id, 0, 0);
}

static int op_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	*bad_wr = wr->next;
	return note("post_srq_recv", P(srq), P(wr), P(bad_wr), wr->wr_id, 0, 0);
}

static int op_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	int i;

	for (i = 0; i < num_entries; i++) {
		memset(&wc[i], 0, sizeof(wc[i]));
		wc[i].wr_id = 100 + i;
		wc[i].status = IBV_WC_RETRY_EXC_ERR;
		wc[i].vendor_err = 0x81;
	}
	return note("poll_cq", P(cq), num_entries, P(wc), 0, 0, 0);
}

static int op_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return note("req_notify_cq", P(cq), solicited_only, 0, 0, 0, 0);
}

static int op_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr, size_t length)
{
	attr->active_mtu = IBV_MTU_4096;
	return note("query_port", P(context), port_num, P(attr), length, 0, 0);
}

static int op_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			      struct ibv_device_attr_ex *attr, size_t size)
{
	attr->orig_attr.max_qp = 41;
	return note("query_device_ex", P(context), P(input), P(attr), size, 0, 0);
}

static struct ibv_cq_ex *op_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	return (struct ibv_cq_ex *)(uintptr_t)note("create_cq_ex", P(context), P(attr), attr->flags, 0, 0, 0);
}

/* --- A verb as C calls it ------------------------------------------------------------------------------------- */

int c_ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	return ibv_post_send(qp, wr, bad_wr);
}

int c_ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	return ibv_post_recv(qp, wr, bad_wr);
}

int c_ibv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	return ibv_post_srq_recv(srq, wr, bad_wr);
}

int c_ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, num_entries, wc);
}

int c_ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return ibv_req_notify_cq(cq, solicited_only);
}

struct verbs_context *c_verbs_get_ctx(struct ibv_context *context)
{
	return verbs_get_ctx(context);
}

int c_ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr)
{
	return ibv_query_port(context, port_num, attr);
}

int c_ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			  struct ibv_device_attr_ex *attr)
{
	return ibv_query_device_ex(context, input, attr);
}

struct ibv_cq_ex *c_ibv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	return ibv_create_cq_ex(context, attr);
}

struct ibv_cq *c_ibv_cq_ex_to_cq(struct ibv_cq_ex *cq)
{
	return ibv_cq_ex_to_cq(cq);
}

/* What the macro does depends on whether it sees a constant, so the flags are given here. */
struct ibv_mr *c_ibv_reg_mr_plain(struct ibv_pd *pd, void *addr, size_t length)
{
	return ibv_reg_mr(pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

struct ibv_mr *c_ibv_reg_mr_relaxed(struct ibv_pd *pd, void *addr, size_t length)
{
	return ibv_reg_mr(pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
}

#ifdef HAS_QUERY_GID_EX
int c_ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
		       struct ibv_gid_entry *entry, uint32_t flags)
{
	return ibv_query_gid_ex(context, port_num, gid_index, entry, flags);
}

ssize_t c_ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
			      uint32_t flags)
{
	return ibv_query_gid_table(context, entries, max_entries, flags);
}
#endif

/* --- What libibverbs exports ---------------------------------------------------------------------------------- */

#undef ibv_query_port
#undef ibv_reg_mr

int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *attr)
{
	((struct ibv_port_attr *)attr)->active_mtu = IBV_MTU_1024;
	return note("ibv_query_port", P(context), port_num, P(attr), 0, 0, 0);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	attr->max_qp = 42;
	/* The extended query has failed with the answer; this one succeeds. */
	answer = 0;
	return note("ibv_query_device", P(context), P(attr), 0, 0, 0, 0);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return (struct ibv_mr *)(uintptr_t)note("ibv_reg_mr", P(pd), P(addr), length, access, 0, 0);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return (struct ibv_mr *)(uintptr_t)note("ibv_reg_mr_iova2", P(pd), P(addr), length, iova, access, 0);
}

#ifdef HAS_QUERY_GID_EX
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t entry_size)
{
	entry->gid_index = gid_index;
	entry->gid_type = IBV_GID_TYPE_ROCE_V2;
	return note("_ibv_query_gid_ex", P(context), port_num, gid_index, P(entry), flags, entry_size);
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
			     uint32_t flags, size_t entry_size)
{
	entries[max_entries - 1].port_num = 7;
	return note("_ibv_query_gid_table", P(context), P(entries), max_entries, flags, entry_size, 0);
}
#endif

#ifdef HAS_QUERY_QP_DATA_IN_ORDER
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	return note("data_in_order", P(qp), op, flags, 0, 0, 0);
}
#endif

/* --- The device ----------------------------------------------------------------------------------------------- */

/* What a driver's context can look like. */
enum {
	OLD,		/* from before there were extended tables */
	NEW,		/* with every operation of the header */
	SHORT,		/* its table ends just above query_port */
	FITTING,	/* its table ends with query_port */
	EMPTY,		/* its table has no operation */
	TABLELESS,	/* its table has the operations of the old context alone */
	KINDS
};

struct device {
	struct verbs_context extended;
	struct ibv_qp qp;
	struct ibv_cq cq;
	struct ibv_srq srq;
	struct ibv_pd pd;
};

static struct device devices[KINDS];

#define SIZE_WITH(op) (sizeof(struct verbs_context) - offsetof(struct verbs_context, op))

static void device_make(struct device *device, int kind)
{
	struct verbs_context *extended = &device->extended;
	struct ibv_context *context = &extended->context;

	context->ops.post_send = op_post_send;
	context->ops.post_recv = op_post_recv;
	context->ops.post_srq_recv = op_post_srq_recv;
	context->ops.poll_cq = op_poll_cq;
	context->ops.req_notify_cq = op_req_notify_cq;
	context->abi_compat = kind == OLD ? NULL : __VERBS_ABI_IS_EXTENDED;

	if (kind != EMPTY) {
		extended->query_port = op_query_port;
		extended->query_device_ex = op_query_device_ex;
		extended->create_cq_ex = op_create_cq_ex;
	}
	extended->sz = sizeof(*extended);
	if (kind == SHORT)
		extended->sz = SIZE_WITH(query_port) - 1;
	else if (kind == FITTING)
		extended->sz = SIZE_WITH(query_port);
	else if (kind == TABLELESS)
		extended->sz = 0;

	device->qp.context = context;
	device->cq.context = context;
	device->srq.context = context;
	device->pd.context = context;
}

int device_kinds(void)
{
	return KINDS;
}

struct ibv_context *device_open(int kind, struct ibv_qp **qp, struct ibv_cq **cq, struct ibv_srq **srq,
				struct ibv_pd **pd)
{
	struct device *device = &devices[kind];

	device_make(device, kind);
	*qp = &device->qp;
	*cq = &device->cq;
	*srq = &device->srq;
	*pd = &device->pd;
	return &device->extended.context;
}
