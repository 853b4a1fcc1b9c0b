#!/usr/bin/env bash
# The first process of a Debian root: `with-systemd.sh SCRIPT OUTPUT` becomes systemd, which runs
# SCRIPT of this folder as a service, with its output in the file OUTPUT, and ends with its status.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p /run/systemd/system
cat >/run/systemd/system/test.service <<UNIT
[Unit]
Description=$1
AllowIsolate=yes
SuccessAction=exit-force
SuccessActionExitStatus=0
FailureAction=exit-force
FailureActionExitStatus=1
[Service]
Type=oneshot
PassEnvironment=HOME LANG PATH DEBIAN_FRONTEND
WorkingDirectory=/root
ExecStart=/bin/bash $here/$1
StandardOutput=truncate:$2
StandardError=inherit
UNIT
exec /lib/systemd/systemd --log-target=null --unit=test.service
