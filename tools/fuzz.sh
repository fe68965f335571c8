#!/bin/sh
# Runs every Fuzz function of the module it is started in for the time given, one after the other:
#   tools/fuzz.sh 10s
# The functions are found, not listed. An input that fails is written to testdata/fuzz; commit it with the fix.
#
# Go 1.26 and older report "context deadline exceeded" now and then when the time is up, with nothing wrong
# (go.dev/issue/75804, fixed in Go 1.27). Such a run has no failing input. It is told and run once more; a
# second one fails. Everything else fails at once.
set -eu

fuzztime=${1:?usage: fuzz.sh DURATION}
go=${GO:-go}

listing=$($go test -list '^Fuzz' ./...) || {
	echo "$listing"
	exit 1
}
# go test prints a package's functions first and its name after them.
targets=$(echo "$listing" | awk '
	/^Fuzz/ { names[++n] = $1 }
	/^ok/   { for (i = 1; i <= n; i++) print $2 "," names[i]; n = 0 }')
if [ -z "$targets" ]; then
	echo "fuzz: found no fuzz function" >&2
	exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# fuzz PACKAGE FUNCTION: shows the output as it comes, keeps it, and returns go test's own status.
fuzz() {
	{
		rc=0
		$go test -run '^$' -fuzz "^$2\$" -fuzztime "$fuzztime" -fuzzminimizetime 10x "$1" || rc=$?
		echo "$rc" >"$scratch/status"
	} 2>&1 | tee "$scratch/output"
	return "$(cat "$scratch/status")"
}

ended_by_the_clock() {
	grep -q '^ *context deadline exceeded$' "$scratch/output" &&
		! grep -q 'Failing input written to' "$scratch/output"
}

for target in $targets; do
	package=${target%,*}
	name=${target#*,}
	echo "fuzz $name for $fuzztime ($package)"
	fuzz "$package" "$name" && continue
	ended_by_the_clock || exit 1
	echo "fuzz: $name ended by the clock with no failing input (go.dev/issue/75804); once more"
	fuzz "$package" "$name" || exit 1
done
