#!/usr/bin/env bash
# Builds the image of examples/digits without a daemon and without a registry, runs it as another user on a root that is
# read-only, asks it for a prediction, and says how large it is. Root runs it, on Debian with mmdebstrap and buildah:
#   tools/try_image.sh            It takes some minutes; what it makes lies in a temporary folder, which it removes.
# GEARTRAIN names the command, such as ".venv/bin/geartrain", and PORT the port.
set -euo pipefail
cd "$(dirname "$0")/.."

geartrain=${GEARTRAIN:-.venv/bin/geartrain}
port=${PORT:-5055}
work=$(mktemp -d)
chmod 755 "$work"
export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF="$work/storage.conf"
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/store"\nrunroot = "%s/run"\n' "$work" "$work" >"$work/storage.conf"
server=
finish() {
  # The server is the child of unshare; it has another user, and so no signal when unshare ends.
  # shellcheck disable=SC2046  # several ids
  [ -z "$server" ] || kill -9 $(ps -o pid= --ppid "$server") "$server" 2>/dev/null || true
  buildah rm -a >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

echo "A base image of Debian"
mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/base.tar"
cp /etc/ssl/certs/ca-certificates.crt "$work/"
printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$work/pip.conf"
printf 'FROM scratch\nADD base.tar /\nCOPY ca-certificates.crt /etc/ssl/certs/\n' >"$work/Dockerfile"
buildah build -q --format docker -t localhost/base "$work" >/dev/null
rm "$work/base.tar"

echo "The image of the model"
$geartrain build examples/digits -t localhost/digits --builder buildah --build-arg BASE=localhost/base \
  --build-arg BUILD_PACKAGES= --pip-config "$work/pip.conf" >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }
container=$(buildah from localhost/digits)
root=$(buildah mount "$container")
packages="$root/opt/geartrain/lib/python3"*/site-packages
# shellcheck disable=SC2086  # a pattern
model=$(cd $packages && du -cm scipy* scikit_learn* sklearn pillow* PIL joblib* narwhals* threadpoolctl* cloudpickle* | tail -1 | cut -f1)
echo "size of the image: $(du -sm "$root" | cut -f1) MB, of it the server's environment $(du -sm "$root/opt" | cut -f1) MB," \
  "of it the model's libraries $model MB"
user=$(buildah inspect --format '{{.OCIv1.Config.User}}' "$container")
[ "$user" = 10001:10001 ] || { echo "the image runs as $user"; exit 1; }

echo "A server in it: user $user, read-only root"
# shellcheck disable=SC2016  # the inner shell's variables
ROOT="$root" USER_SPEC="$user" LISTEN="$port" unshare --mount --fork --kill-child bash -c '
  mount --bind "$ROOT" "$ROOT"
  mount -t tmpfs tmpfs "$ROOT/tmp" -o mode=1777
  mount --bind /dev "$ROOT/dev"
  mount -t proc proc "$ROOT/proc"
  mount -o remount,bind,ro "$ROOT"
  ! touch "$ROOT/opt/written" 2>/dev/null || exit 9
  exec chroot --userspec="$USER_SPEC" "$ROOT" /usr/bin/env -i HOME=/tmp XDG_CACHE_HOME=/tmp/cache PATH=/opt/geartrain/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 PORT="$LISTEN" geartrain serve /models --model-name=digits --grpc-port=off --log-format=json
' >"$work/server.log" 2>&1 &
server=$!
for _ in $(seq 120); do
  curl -fs "http://127.0.0.1:$port/readyz" >/dev/null && break
  kill -0 "$server" 2>/dev/null || { cat "$work/server.log"; exit 1; }
  sleep 0.5
done
picture="data:image/png;base64,$(base64 -w0 examples/digits/three.png)"
answer=$(curl -fs "http://127.0.0.1:$port/predictions" -H 'content-type: application/json' -d "{\"input\":{\"image\":\"$picture\"}}")
echo "$answer" | grep -q '"digit":3' || { echo "$answer"; tail "$work/server.log"; exit 1; }
curl -fs "http://127.0.0.1:$port/v2/models/digits/ready"
ps -o user:12,args -C geartrain | sort | uniq -c | head -5
health=$(buildah inspect --format '{{.Docker.Config.Healthcheck}}' "$container")
[[ "$health" == *livez* ]] || { echo "no health check: $health"; exit 1; }
echo "the answer is 3, and the image has a health check"
