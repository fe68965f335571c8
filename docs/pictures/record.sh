#!/bin/sh
# Records watch.terminal: the screen of `relock watch` on a server with locks of all kinds.
# Needs redis-server, redis-cli and tmux.
set -eu

cd "$(dirname "$0")"
out=$PWD/watch.terminal
dir=$(mktemp -d)
port=${PORT:-16379}
pids=
trap 'kill $pids 2>/dev/null || :; redis-cli -p "$port" shutdown nosave 2>/dev/null || :; rm -rf "$dir"' EXIT

(cd ../../cmd/relock && go build -tags redis -o "$dir/relock" .)
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" --daemonize yes >/dev/null
export REDIS_URL="redis://127.0.0.1:$port"
sleep 1

# Each run begins after the one before it has asked.
run() {
	"$dir/relock" run "$@" -- sleep 60 >/dev/null 2>&1 &
	pids="$pids $!"
	sleep 0.7
}
run orders:42 --owner shop-1
run orders:42 --owner shop-2
run orders:42 --owner shop-3
run catalogue --owner export-1 --shared
run catalogue --owner export-2 --shared
run catalogue --owner import --write
run uploads --owner edge-1 --permits 2
run uploads --owner edge-2 --permits 2
run uploads --owner edge-3 --permits 2
run nightly-report --owner cron --ttl 1m --max-hold 6h

tmux -L "relock-$port" new-session -d -x 112 -y 14 "$dir/relock watch"
sleep 3
{
	echo '$ relock watch'
	tmux -L "relock-$port" capture-pane -p
} >"$out"
tmux -L "relock-$port" kill-server
cat "$out"
