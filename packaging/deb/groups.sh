# shellcheck shell=bash
# remove_groups PREFIX: removes the control groups whose names begin so, which in-root.sh has made
# (OWN_CGROUP). Their last processes end a moment after the first one.
remove_groups() {
    local groups tries=600
    groups=$(mktemp -d)
    mount -t cgroup2 cgroup2 "$groups"
    until find "$groups" -depth -type d -path "$groups/$1*" -exec rmdir {} + 2>/dev/null; do
        ((tries--)) || break
        sleep 0.1
    done
    umount "$groups" && rmdir "$groups"
}
