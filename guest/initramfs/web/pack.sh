#!/bin/sh
# Packs the initramfs of the web benchmark's guest: Apache with every library it needs, and its
# configuration, appended to the test guest's initramfs. The kernel unpacks one archive after the
# other.
#
# usage: pack.sh INITRAMFS APACHE_ROOT OUTPUT
set -eu

initramfs=$1 apache=$2 output=$3
here=$(CDPATH="" cd -- "$(dirname -- "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

folders="$apache/lib/x86_64-linux-gnu:$apache/usr/lib/x86_64-linux-gnu"
loader=lib64/ld-linux-x86-64.so.2
modules="mod_mpm_prefork.so mod_authz_core.so"

mkdir -p "$root/web" "$root/www" "$root/run" "$root/lib64" "$root/web/lib" "$root/usr/lib/apache2/modules"
cp "$apache/usr/sbin/apache2" "$root/web/apache2"
cp -L "$apache/$loader" "$root/lib64/"
for module in $modules; do
    cp "$apache/usr/lib/apache2/modules/$module" "$root/usr/lib/apache2/modules/"
done
for program in usr/sbin/apache2 $(for module in $modules; do echo "usr/lib/apache2/modules/$module"; done); do
    "$apache/$loader" --inhibit-cache --library-path "$folders" --list "$apache/$program"
done | awk '$2 == "=>" { print $3 }' | sort -u | while read -r library; do
    cp -L "$library" "$root/web/lib/"
done
cp "$here/httpd.conf" "$here/start" "$root/web/"
chmod -R u=rwX,go=rX "$root"
chmod 755 "$root/web/start" "$root/web/apache2" "$root/$loader"
find "$root" -exec touch -h -d @0 {} +

{
    cat "$initramfs"
    # /init runs `web/start` if it exists.
    (cd "$root" && find . | LC_ALL=C sort | cpio --quiet --reproducible --owner=0:0 -H newc -o)
} >"$output.new"
mv "$output.new" "$output"
