# Messages: what is being done; and errors, with what to do next.

say() { printf 'setup: %s\n' "$*"; }

fail() {
    printf 'setup: error: %s\n' "$1" >&2
    shift
    local line
    for line in "$@"; do printf 'setup:        %s\n' "$line" >&2; done
    exit 1
}
