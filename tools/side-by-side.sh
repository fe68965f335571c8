#!/bin/sh
# Runs each of its arguments as a command, all at the same time, and fails if one of them fails:
#   tools/side-by-side.sh 'go test ./a' 'go test ./b'
# What the first one prints is shown at once, and of the others when they have ended, so that nothing is mixed.
set -eu

scratch=$(mktemp -d)
pids=
stop() {
	for pid in $pids; do
		kill "$pid" 2>/dev/null || :
	done
	rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT TERM

n=0
for command; do
	n=$((n + 1))
	if [ "$n" = 1 ]; then
		sh -c "exec $command" &
	else
		sh -c "exec $command" >"$scratch/$n" 2>&1 &
	fi
	pids="$pids $!"
done

n=0
status=0
for pid in $pids; do
	n=$((n + 1))
	wait "$pid" || status=$?
	[ "$n" = 1 ] || cat "$scratch/$n"
done
pids=
exit "$status"
