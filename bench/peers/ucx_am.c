/*
 * Requests and responses as active messages of UCX, between two threads and two workers over POSIX shared memory.
 *
 * ucx_am SIZE WINDOW CONNECTIONS CLIENT_CPU SERVER_CPU
 *
 * Prints "ready". For each line "WARM_US TIME_US" it runs, and prints "OPERATIONS TIME_NS WAITED_NS": the last is for
 * how long the two threads wanted to run and could not. A connection is an endpoint at either worker. The first bytes of
 * a message say which call it is: that is cheaper for UCX than a header and its reply endpoint would be.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

enum { REQUEST = 1, RESPONSE = 2 };
enum { BYTE = 7 };
/* Rounds of progress between two looks at the clock. */
enum { POLLS = 256 };

struct end {
    ucp_worker_h worker;
    ucp_ep_h *endpoints;
    /* A buffer for each call that may be outstanding. */
    uint8_t *buffers;
} __attribute__((aligned(128)));

static struct end client, server;
static uint32_t size, window, connections;
static int cpus[2];
static uint64_t answered __attribute__((aligned(128)));
static atomic_int stopped __attribute__((aligned(128)));
static uint64_t server_waited_ns;
static sem_t turn, turned;

static void die(const char *what, ucs_status_t status)
{
    fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static void pin(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t waited_ns(void)
{
    uint64_t ran, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (file != NULL) {
        if (fscanf(file, "%" SCNu64 " %" SCNu64, &ran, &waited) != 2)
            waited = 0;
        fclose(file);
    }
    return waited;
}

static void sent(void *request, ucs_status_t status, void *data)
{
    (void)data;
    if (status != UCS_OK)
        die("a message was not sent", status);
    ucp_request_free(request);
}

static void send_message(struct end *end, unsigned id, uint32_t call)
{
    static const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = sent,
    };
    void *buffer = end->buffers + (size_t)call * size;
    ucs_status_ptr_t status =
        ucp_am_send_nbx(end->endpoints[call / window], id, NULL, 0, buffer, size, &param);
    if (UCS_PTR_IS_ERR(status))
        die("a message was not sent", UCS_PTR_STATUS(status));
}

/* The call that a message is about. */
static uint32_t call_of(const void *data, size_t length)
{
    uint32_t call = 0;
    if (length == size)
        memcpy(&call, data, sizeof call);
    if (length != size || call >= window * connections || ((const uint8_t *)data)[size - 1] != BYTE) {
        fprintf(stderr, "a message of %zu bytes about call %u\n", length, call);
        exit(1);
    }
    return call;
}

static ucs_status_t on_request(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    (void)arg, (void)header, (void)header_length, (void)param;
    uint32_t call = call_of(data, length);
    memcpy(server.buffers + (size_t)call * size, data, length);
    send_message(&server, RESPONSE, call);
    return UCS_OK;
}

static ucs_status_t on_response(void *arg, const void *header, size_t header_length, void *data, size_t length,
                                const ucp_am_recv_param_t *param)
{
    (void)arg, (void)header, (void)header_length, (void)param;
    answered++;
    send_message(&client, REQUEST, call_of(data, length));
    return UCS_OK;
}

static void make_end(struct end *end, ucp_context_h context, unsigned id, ucp_am_recv_callback_t handler)
{
    ucp_worker_params_t worker = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucs_status_t status = ucp_worker_create(context, &worker, &end->worker);
    if (status != UCS_OK)
        die("ucp_worker_create", status);
    ucp_am_handler_param_t am = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = id,
        .cb = handler,
    };
    status = ucp_worker_set_am_recv_handler(end->worker, &am);
    if (status != UCS_OK)
        die("ucp_worker_set_am_recv_handler", status);
    uint32_t calls = window * connections;
    end->endpoints = calloc(connections, sizeof *end->endpoints);
    end->buffers = malloc((size_t)calls * size);
    if (end->endpoints == NULL || end->buffers == NULL)
        die("malloc", UCS_ERR_NO_MEMORY);
    memset(end->buffers, BYTE, (size_t)calls * size);
    for (uint32_t call = 0; call < calls; call++)
        memcpy(end->buffers + (size_t)call * size, &call, sizeof call);
}

static void connect_to(struct end *end, struct end *peer)
{
    ucp_address_t *address;
    size_t length;
    ucs_status_t status = ucp_worker_get_address(peer->worker, &address, &length);
    if (status != UCS_OK)
        die("ucp_worker_get_address", status);
    for (uint32_t i = 0; i < connections; i++) {
        ucp_ep_params_t endpoint = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
            .address = address,
        };
        status = ucp_ep_create(end->worker, &endpoint, &end->endpoints[i]);
        if (status != UCS_OK)
            die("ucp_ep_create", status);
    }
    ucp_worker_release_address(peer->worker, address);
}

static void *serve(void *arg)
{
    (void)arg;
    pin(cpus[1]);
    for (;;) {
        sem_wait(&turn);
        uint64_t waited = waited_ns();
        while (!atomic_load_explicit(&stopped, memory_order_relaxed))
            ucp_worker_progress(server.worker);
        server_waited_ns = waited_ns() - waited;
        sem_post(&turned);
    }
    return NULL;
}

/* Lets the clients' end run, until something was answered at least; returns for how long it did. */
static uint64_t run(uint64_t time_ns)
{
    uint64_t before = answered, begun = now_ns(), passed;
    do {
        for (int i = 0; i < POLLS; i++)
            ucp_worker_progress(client.worker);
        passed = now_ns() - begun;
    } while (passed < time_ns || answered == before);
    return passed;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: ucx_am SIZE WINDOW CONNECTIONS CLIENT_CPU SERVER_CPU\n");
        return 2;
    }
    size = (uint32_t)atoi(argv[1]);
    window = (uint32_t)atoi(argv[2]);
    connections = (uint32_t)atoi(argv[3]);
    cpus[0] = atoi(argv[4]);
    cpus[1] = atoi(argv[5]);
    if (size < sizeof(uint32_t) + 1 || window == 0 || connections == 0) {
        fprintf(stderr, "a size of 5 or more, a window and connections of 1 or more\n");
        return 2;
    }
    setenv("UCX_TLS", "posix,self", 0);

    ucp_context_h context;
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM };
    ucs_status_t status = ucp_init(&params, NULL, &context);
    if (status != UCS_OK)
        die("ucp_init", status);
    make_end(&client, context, RESPONSE, on_response);
    make_end(&server, context, REQUEST, on_request);
    connect_to(&client, &server);
    connect_to(&server, &client);

    pthread_t thread;
    sem_init(&turn, 0, 0);
    sem_init(&turned, 0, 0);
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        die("pthread_create", UCS_ERR_NO_MEMORY);
    pin(cpus[0]);
    for (uint32_t call = 0; call < window * connections; call++)
        send_message(&client, REQUEST, call);
    puts("ready");
    fflush(stdout);

    uint64_t warm_us, time_us;
    while (scanf("%" SCNu64 " %" SCNu64, &warm_us, &time_us) == 2) {
        atomic_store_explicit(&stopped, 0, memory_order_relaxed);
        sem_post(&turn);
        run(warm_us * 1000);
        uint64_t before = answered, waited = waited_ns();
        uint64_t time_ns = run(time_us * 1000);
        uint64_t operations = answered - before;
        waited = waited_ns() - waited;
        atomic_store_explicit(&stopped, 1, memory_order_relaxed);
        sem_wait(&turned);
        printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", operations, time_ns, waited + server_waited_ns);
        fflush(stdout);
    }
    /* Nothing is worth being taken down. */
    _Exit(0);
}
