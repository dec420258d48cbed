#!/usr/bin/env bash
# Run in ci/soft-roce-vm with two nodes and 16 hugepages: shows that the guest is what the tests of
# real verbs take it for. It reports as cargo's tests do, so that ci.sh can count.
set -euo pipefail

there_are_two_active_devices() {
    [[ $(echo /sys/class/infiniband/*) == "/sys/class/infiniband/rxe0 /sys/class/infiniband/rxe1" ]]
    grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
    grep -q ACTIVE /sys/class/infiniband/rxe1/ports/1/state
}

gid_index_1_is_the_address_for_roce_v2() {
    local i port
    for i in 0 1; do
        port=/sys/class/infiniband/rxe$i/ports/1
        [[ $(<"$port/gids/1") == "0000:0000:0000:0000:0000:ffff:0a4d:000$((i + 1))" ]]
        [[ $(<"$port/gid_attrs/types/1") == "RoCE v2" ]]
        [[ $(<"$port/gid_attrs/ndevs/1") == "h$i" ]]
    done
}

# latency PROGRAM ITERATIONS: from rxe1 to rxe0, typical, in whole microseconds.
latency() {
    local out server i
    out=$(mktemp)
    "$1" -d rxe0 -x 1 -n "$2" >"$out" 2>&1 &
    server=$!
    for ((i = 0; i < 200; i++)); do
        ss -Hltn | grep -q ':18515 ' && break
        sleep 0.05
    done
    "$1" -d rxe1 -x 1 -n "$2" 10.77.0.1 >"$out.client" 2>&1 || cat "$out" "$out.client" >&2
    wait "$server"
    awk '$1 == "2" { found = 1; printf "%d\n", $5 } END { exit !found }' "$out.client"
}

write_from_node_to_node() {
    [[ $(latency ib_write_lat 200) -gt 0 ]]
}

read_from_node_to_node() {
    [[ $(latency ib_read_lat 200) -gt 0 ]]
}

send_from_node_to_node() {
    [[ $(latency ib_send_lat 200) -gt 0 ]]
}

netem_delays_what_a_node_sends() {
    local us
    tc qdisc add dev h0 root netem delay 40ms
    us=$(latency ib_write_lat 10)
    tc qdisc del dev h0 root
    # It goes to and fro, and is delayed on the way back only: half of that for one way.
    ((us >= 20000))
}

netem_loses_packets_and_no_write() {
    tc qdisc add dev h0 root netem loss 5%
    [[ $(latency ib_write_lat 200) -gt 0 ]]
    [[ $(tc -s qdisc show dev h0) =~ dropped\ [1-9] ]]
    tc qdisc del dev h0 root
}

hugepages_are_reserved() {
    [[ $(</proc/sys/vm/nr_hugepages) -ge 16 ]]
}

memory_may_be_locked() {
    [[ $(ulimit -l) == unlimited ]]
}

passed=0
failed=0
for check in there_are_two_active_devices gid_index_1_is_the_address_for_roce_v2 write_from_node_to_node \
    read_from_node_to_node send_from_node_to_node netem_delays_what_a_node_sends \
    netem_loses_packets_and_no_write hugepages_are_reserved memory_may_be_locked; do
    # In the background, because a condition around the check itself would turn its "set -e" off.
    "$check" &
    if wait "$!"; then
        echo "test $check ... ok"
        passed=$((passed + 1))
    else
        echo "test $check ... FAILED"
        failed=$((failed + 1))
    fi
done
if ((failed == 0)); then verdict=ok; else verdict=FAILED; fi
echo "test result: $verdict. $passed passed; $failed failed; 0 ignored"
((failed == 0))
