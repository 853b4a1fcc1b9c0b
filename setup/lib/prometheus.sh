# Prometheus and promtool, for tests of the metrics. Both need only the host's C library; the files
# of Prometheus' own pages are left out.

setup_prometheus() {
    local folder=$build/prometheus
    # Run them: a folder may have been copied in part.
    if [[ -e $folder/.done ]] && "$folder/prometheus" --version &>/dev/null &&
        "$folder/promtool" --version &>/dev/null; then return 0; fi
    prepare_private_apt
    say "Prometheus from $codename"
    rm -rf "$folder"
    fetch_and_unpack "$folder/root" prometheus
    local program answer
    for program in prometheus promtool; do
        ln -sfn "root/usr/bin/$program" "$folder/$program"
        answer=$("$folder/$program" --version 2>&1 | head -n 1) || true
        [[ $answer == "$program, version"* ]] || fail "$program was unpacked but does not run" "$answer"
    done
    rm -rf "$folder"/root/{etc,lib,var,usr/share}
    printf '%s\n' "$answer" >"$folder/.done"
}
