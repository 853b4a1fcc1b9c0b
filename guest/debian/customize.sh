#!/bin/sh
# Runs inside the new Debian guest while it is made: no login on the serial line, which carries the
# workload's lines, and nothing that waits for time, network or hardware.
set -eu

echo guest >/etc/hostname
echo '/dev/vda / ext4 defaults 0 1' >/etc/fstab
: >/etc/machine-id
chown redis:redis /etc/redis/redis.conf
chmod 640 /etc/redis/redis.conf
systemctl enable hikkoshi-workload.service redis-server.service
systemctl mask serial-getty@ttyS0.service getty@tty1.service systemd-timesyncd.service \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer systemd-udev-settle.service
