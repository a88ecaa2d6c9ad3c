#!/usr/bin/env bash
# Installs what the peers' drivers are compiled against (Debian and Ubuntu).
set -euo pipefail

packages=(build-essential liblmdb-dev libleveldb-dev librocksdb-dev)
sudo=()
if [[ $(id -u) -ne 0 ]]; then
    sudo=(sudo)
fi
"${sudo[@]}" apt-get update -q
"${sudo[@]}" apt-get install -y -q "${packages[@]}"
