#!/usr/bin/env bash
# The user that pods run as (`run_as_user` of the pool), with a home that it may write to.
#   user.sh [FOLDER]     the image's root folder
set -euo pipefail
root=${1:-}
id=1000
mkdir -p "$root/home/warpbeam" "$root/etc"
touch "$root/etc/passwd" "$root/etc/group"
if grep -q "^[^:]*:[^:]*:$id:" "$root/etc/passwd"; then
    echo "there is a user $id already" >&2
    exit 1
fi
echo "warpbeam:x:$id:$id::/home/warpbeam:/bin/bash" >> "$root/etc/passwd"
echo "warpbeam:x:$id:" >> "$root/etc/group"
chown -R "$id:$id" "$root/home/warpbeam"
