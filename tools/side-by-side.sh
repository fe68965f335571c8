#!/bin/sh
# Runs each of its arguments as a command, all at the same time, and fails if one of them fails:
#   tools/side-by-side.sh 'go test ./a' 'go test ./b'
# What a command prints is shown when it has ended, so that nothing is mixed.
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
	sh -c "exec $command" >"$scratch/$n" 2>&1 &
	pids="$pids $!"
done

n=0
status=0
for pid in $pids; do
	n=$((n + 1))
	wait "$pid" || status=$?
	cat "$scratch/$n"
done
pids=
exit "$status"
