# A private apt: state, lists and downloads under build/apt/RELEASE, with the host's Debian sources
# (same mirror, same keys) plus that mirror's backports suite. The host's apt is only read.
#
# The packages are resolved as for an empty machine, and then only missing ones are downloaded. So
# it does not matter what is already installed, for example another QEMU.
#
# The functions use one release of Debian, usually the machine's. Each has lists of its own.

use_release() {
    release=$1
    private_apt=$build/apt/$1
}

# Executes a function with the packages of another release: with_release trixie setup_qemu …
# Programs of a newer release need its C library and loader, too; see use_own_libraries.
with_release() {
    local release private_apt
    use_release "$1"
    shift
    "$@"
}

# $1: a folder of sources; the other arguments are passed to apt.
apt_with() {
    local sources=$1 tool=$2
    shift 2
    "$tool" -c "$private_apt/apt.conf" -o "Dir::Etc::sourceparts=$sources" "$@"
}

apt_get() { apt_with "$private_apt/sources" apt-get "$@"; }
apt_cache() { apt_with "$private_apt/sources" apt-cache "$@"; }

write_private_configuration() {
    mkdir -p "$private_apt"/{state/lists/partial,cache/archives/partial,sources,preferences}
    : >"$private_apt/status"
    cat >"$private_apt/apt.conf" <<CONF
Dir::State "$private_apt/state";
Dir::State::status "$private_apt/status";
Dir::Cache "$private_apt/cache";
Dir::Etc::sourcelist "$private_apt/none";
Dir::Etc::preferences "$private_apt/none";
Dir::Etc::preferencesparts "$private_apt/preferences";
APT::Install-Recommends "false";
APT::Default-Release "";
APT::Get::List-Cleanup "false";
Acquire::Languages "none";
// The user that runs this may write here: no need to become another user for the download.
APT::Sandbox::User "";
// Hooks of the machine are meant for the machine's state.
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
}

# Prints one entry of the machine's sources, as `indextargets` names it: FILE:NUMBER, where the
# number counts lines in a .list and stanzas in a .sources file.
print_source_entry() {
    local file=${1%:*} number=${1##*:}
    if [[ $file == *.sources ]]; then
        # Paragraph mode is not enough: a blank line of nothing but comments does not end a stanza.
        awk -v want="$number" '
            /^#/ { next }
            /^[ \t]*$/ { inside = 0; next }
            !inside { inside = 1; stanza++ }
            stanza == want { print }' "$file"
    else
        sed -n "${number}p" "$file"
    fi
}

# The same entry for another suite.
with_suite() {
    local kind=$1 suite=$2
    if [[ $kind == sources ]]; then
        sed -E "s/^Suites:.*/Suites: $suite/I; s/^Components:.*/Components: main/I; s/^Types:.*/Types: deb/I"
    else
        # deb [options] URI SUITE COMPONENTS…
        sed -E "s/^[ \t]*deb(-src)?[ \t]+((\[[^]]*\][ \t]+)?)([^ \t]+)[ \t]+.*/deb \2\4 $suite main/"
    fi
}

# Downloads the package lists of the release, once per run.
declare -A private_apt_ready
prepare_private_apt() {
    [[ -z ${private_apt_ready[$release]:-} ]] || return 0
    say "reading the package lists of Debian $release from the mirror that this machine uses"
    write_private_configuration
    local log=$private_apt/update.log
    # All sources of the machine, to find out which of them are Debian's. Third-party sources may
    # fail here, which does not matter.
    local machine_sources entries
    machine_sources=$(apt-config shell d Dir::Etc::sourceparts/d | sed -E "s/^d='(.*)'$/\1/")
    local machine_list
    machine_list=$(apt-config shell f Dir::Etc::sourcelist/f | sed -E "s/^f='(.*)'$/\1/")
    local from_machine=(apt_with "$machine_sources")
    local list_option=()
    [[ ! -e $machine_list ]] || list_option=(-o "Dir::Etc::sourcelist=$machine_list")
    "${from_machine[@]}" apt-get update "${list_option[@]}" >"$log" 2>&1 || true
    # shellcheck disable=SC2016 # apt substitutes these, not the shell.
    entries=$("${from_machine[@]}" apt-get indextargets "${list_option[@]}" \
        --format '$(SOURCESENTRY) $(CODENAME) $(ORIGIN)' \
        'Created-By: Packages' 'Component: main' 2>>"$log" | sort -u) || true

    rm -f "$private_apt"/sources/*
    local entry suite origin main=
    while read -r entry suite origin; do
        [[ $origin == Debian ]] || continue
        case $suite in
        "$codename" | "$codename-updates" | "$codename-security") ;;
        *) continue ;;
        esac
        [[ $suite != "$codename" || -n $main ]] || main=$entry
        write_source "$entry" "${suite/#$codename/$release}"
    done <<<"$entries"
    if [[ -z $main ]]; then
        tail -n 5 "$log" >&2
        fail "no package list of Debian $codename could be fetched from this machine's apt sources" \
            "Is there a network, and does \`apt-get update\` work?"
    fi
    write_source "$main" "$release-backports"

    if ! apt_get update >"$log" 2>&1 || ! apt_cache policy | grep "n=$release-backports" >/dev/null; then
        tail -n 5 "$log" >&2
        fail "the mirror that this machine's Debian packages come from gave no list of $release-backports" \
            "QEMU 10.0 and 11.1 come from backports. Its last words are above. (If the keys of" \
            "Debian $release are missing: \`apt-get install debian-archive-keyring\`.)"
    fi
    private_apt_ready[$release]=yes
}

write_source() {
    local kind=list
    [[ ${1%:*} != *.sources ]] || kind=sources
    print_source_entry "$1" | with_suite "$kind" "$2" >"$private_apt/sources/$2.$kind"
}

# The packages that package $1 needs, itself included: lines of "name version", for an empty
# machine, where the packages named by the patterns after $3 come from suite $2 and everything else
# from apt's preferred suite. Fails if apt cannot install it.
closure() {
    local package=$1 suite=$2 log=$private_apt/resolve.log needed
    shift 2
    cat >"$private_apt/preferences/suite.pref" <<PIN
Package: $*
Pin: release n=$suite
Pin-Priority: 990
PIN
    needed=$(apt_get install --simulate --quiet=2 "$package" 2>"$log" |
        sed -nE 's/^Inst ([^ ]+) .*\(([^ ]+) .*/\1 \2/p') || true
    [[ -n $needed ]] || fail "apt cannot install $package from $suite" "apt says: $(tail -n 1 "$log")"
    printf '%s\n' "$needed"
}

# Of the packages on standard input, those named by the arguments and the libraries that the machine
# does not have, as "name=version". The others are programs and scripts that are needed only during
# installation. The C library must match the machine's loader.
with_missing_libraries() {
    local name package_version
    while read -r name package_version; do
        if [[ " $* " != *" $name "* ]]; then
            [[ $name == lib* && $name != libc6 && $name != libc-bin ]] || continue
            ! machine_has "$name" "$package_version" || continue
        fi
        printf '%s\n' "$name=$package_version"
    done
}

# True if the machine has package $1, new enough to replace version $2. Within a release any
# version is sufficient; a package from backports is needed in that version or newer. Programs of
# another release use nothing of the machine's.
machine_has() {
    [[ $release == "$codename" ]] || return 1
    local state
    # shellcheck disable=SC2016 # dpkg substitutes these, not the shell.
    state=$(dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | head -n 1) || return 1
    [[ ${state%% *} == installed ]] || return 1
    [[ $2 != *bpo* ]] || dpkg --compare-versions "${state##* }" ge "$2"
}

# Downloads packages ("name=version"), verified by apt, and unpacks them into folder $1.
fetch_and_unpack() {
    local into=$1 downloads=$private_apt/downloads log=$private_apt/download.log
    shift
    (($#)) || fail "there are no packages to unpack into $into" "This is a defect of the set-up."
    rm -rf "$downloads"
    mkdir -p "$downloads" "$into"
    if ! (cd "$downloads" && apt_get download "$@") >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        fail "these packages could not be downloaded: $*" "The last lines of apt are above. Is there a network?"
    fi
    local package
    for package in "$downloads"/*.deb; do
        dpkg-deb --extract "$package" "$into" || fail "$package could not be unpacked into $into" "Is the disk full?"
    done
    rm -rf "$downloads"
}

# Makes program $1 of another release use the loader, the C library and all other libraries in root
# $2. Apart from these two paths the program remains as it was packaged. (Executing the loader, or
# another root, would change what /proc has about the process.) Children of the program are not
# affected, as they would be by LD_LIBRARY_PATH.
use_own_libraries() {
    setup_patchelf
    "$build/patchelf/root/usr/bin/patchelf" --set-interpreter "$2/usr/lib64/ld-linux-x86-64.so.2" \
        --force-rpath --set-rpath "$2/usr/lib/x86_64-linux-gnu" "$1" ||
        fail "the paths of the libraries could not be set in $1" "The words of patchelf are above."
}

setup_patchelf() {
    local folder=$build/patchelf
    [[ ! -e $folder/.done ]] || return 0
    rm -rf "$folder"
    with_release "$codename" prepare_private_apt
    with_release "$codename" fetch_and_unpack "$folder/root" patchelf
    : >"$folder/.done"
}
