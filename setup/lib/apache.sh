# Apache for the guest of the web benchmark. It runs only in the guest.

setup_apache() {
    local folder=$build/apache
    if [[ -e $folder/.done ]] && apache_libraries "$folder/root" >/dev/null; then return 0; fi
    prepare_private_apt
    say "Apache from $codename"
    rm -rf "$folder"

    local needed
    needed=$(closure apache2-bin "$codename" 'apache2*')
    local found
    found=$(awk '$1 == "apache2-bin" { print $2 }' <<<"$needed")

    # The guest has no libraries: all are included, also the C library. What the packages need
    # only during installation (perl, dpkg, media types) is left out.
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        libperl* | libdb5* | libgdbm*) continue ;;
        apache2-bin | lib* | zlib*) wanted+=("$name=$package_version") ;;
        esac
    done <<<"$needed"

    say "Apache $found: fetching ${#wanted[@]} packages"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share
    apache_libraries "$folder/root" >/dev/null || fail "Apache was unpacked, but some of its libraries are missing" \
        "$(apache_libraries "$folder/root" 2>&1 | tail -n 1)"
    printf '%s\n' "$found" >"$folder/.done"
}

# The libraries that Apache in folder $1 needs, as that folder's own loader finds them there.
apache_libraries() {
    local root=$1 listed
    listed=$("$root/lib64/ld-linux-x86-64.so.2" --inhibit-cache \
        --library-path "$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu" \
        --list "$root/usr/sbin/apache2") || return 1
    # None may come from the host.
    awk -v root="$root/" '$2 == "=>" { print $3; if (index($3, root) != 1) { print $1 " is missing" > "/dev/stderr"; bad = 1 } } END { exit bad }' <<<"$listed"
}
