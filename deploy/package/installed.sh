#!/bin/sh
# A new version serves after the next restart; the first one waits until somebody
# has put engines into /etc/warden/warden.yaml.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart warden.service
fi
