#!/bin/sh
# In the Debian guest: runs the workload of the kernel's command line (rates=NAME) without end, says
# "begin" on the serial port, and then prints twice per second how long the guest has run.
exec >/dev/ttyS0 2>&1
name=$(tr ' ' '\n' </proc/cmdline | sed -n 's/^rates=//p')
mount -t tmpfs tmpfs /tmp
forever() { while :; do "$@"; done >/dev/null & }
redis() { redis-benchmark -p 7777 -t "$1" -r 200000 -n 200000 -d 200 -P 16 -c 10 -q >/dev/null; }
case $name in
redis-set | redis-get)
    redis-server --save '' --appendonly no --port 7777 --daemonize yes --logfile /dev/null >/dev/null
    until redis-cli -p 7777 ping; do sleep 0.1; done
    redis set
    forever redis "${name#redis-}"
    ;;
sort)
    perl -e 'for (1..2000000) { print int(rand(1e12)), "\n" }' >/tmp/numbers
    forever sort -S 100M -o /tmp/sorted /tmp/numbers
    ;;
perl)
    # shellcheck disable=SC2016 # perl's variables
    forever perl -e 'my %h; for (1..400000) { $h{int(rand(1e6))} .= "value $_;" } my $n = keys %h;'
    ;;
*)
    echo "no such workload: $name"
    exit 1
    ;;
esac
echo begin
while :; do
    echo "uptime $(cat /proc/uptime)"
    sleep 0.5
done
