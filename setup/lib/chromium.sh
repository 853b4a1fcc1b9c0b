# Chromium's headless shell, with the libraries that the host does not have, and fonts, for tests
# that show a page. It is the smallest of Debian's Chromium packages that draws real pages. Tests
# control it through a pipe (DevTools protocol), so no driver is needed.

setup_chromium() {
    local folder=$build/chromium
    # Run it: a library that was present at setup may be missing now.
    if [[ -e $folder/.done ]] && "$folder/run" --version >/dev/null 2>&1; then return 0; fi
    prepare_private_apt
    say "Chromium's headless shell from $codename-security"
    rm -rf "$folder"
    local needed
    # Debian publishes new versions of Chromium only as security updates, until the next point
    # release.
    needed=$(closure chromium-headless-shell "$codename-security" 'chromium*')
    # Without graphics drivers and interpreters of the X11 tools that the package asks for.
    local wanted
    mapfile -t wanted < <(grep -vE '^lib(gl1|glx|glvnd0|glapi|llvm|z3|perl)' <<<"$needed" |
        with_missing_libraries chromium-headless-shell chromium-common)
    wanted+=(fonts-dejavu-core)

    say "Chromium: fetching ${#wanted[@]} packages"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share/{doc,man,lintian,bug,locale}
    # The tests' pages are drawn without a graphics card.
    rm -f "$folder"/root/usr/lib/chromium/libVk*
    write_fonts_configuration >"$folder/fonts.conf"
    cat >"$folder/run" <<'RUN'
#!/bin/sh
# Executes this folder's Chromium, with the libraries and fonts that were unpacked with it.
folder=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
libraries=$folder/root/usr/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=$libraries:$libraries/pulseaudio:$folder/root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
FONTCONFIG_FILE=$folder/fonts.conf
export LD_LIBRARY_PATH FONTCONFIG_FILE
exec "$folder/root/usr/lib/chromium/chromium-headless-shell" "$@"
RUN
    chmod +x "$folder/run"
    local answer
    answer=$("$folder/run" --version 2>&1 | tail -n 1) || true
    [[ $answer == *Chrom* ]] || fail "Chromium was unpacked but does not run" "$answer"
    printf '%s\n' "$answer" >"$folder/.done"
}

# The unpacked fonts only, so that a page looks the same on each machine. Paths are relative to the
# file, so that `build` may be moved. Chromium asks for the families Times New Roman and Arial where
# a page says `serif` and `sans-serif`.
write_fonts_configuration() {
    cat <<'FONTS'
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir prefix="relative">root/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
FONTS
    local names family wanted
    while IFS=: read -r family names; do
        for wanted in ${names//,/ }; do
            cat <<FONTS
  <match target="pattern">
    <test name="family"><string>${wanted//_/ }</string></test>
    <edit name="family" mode="assign" binding="strong"><string>$family</string></edit>
  </match>
FONTS
        done
    done <<'FAMILIES'
DejaVu Serif:serif,Times_New_Roman
DejaVu Sans:sans-serif,system-ui,Arial
DejaVu Sans Mono:monospace,Courier_New
FAMILIES
    echo '</fontconfig>'
}
