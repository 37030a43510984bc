#!/bin/sh
# $1 is remove (deb) or 0 (rpm) when the package goes and not only its version.
set -e
if [ -d /run/systemd/system ] && { [ "$1" = remove ] || [ "$1" = 0 ]; }; then
  systemctl disable --now warden.socket warden.service || true
fi
