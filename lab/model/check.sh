#!/bin/sh
# Checks one case of the model, or tells the shortest story of one broken rule.
#
#   sh check.sh <name>            exit 1 if that case is not as the file "cases" says
#   sh check.sh story <rule>      what happens without that rule, step by step
#
# Needs spin and a C compiler. All output is in .build, one directory a case.
set -u
cd "$(dirname "$0")" || exit 1
build=$PWD/.build
: "${CC:=cc}" "${MEMORY:=1500}" "${DEPTH:=20000}"

# line_of <name>: the line of that case, behind the name of its model.
line_of() { sed 's/ *#.*//' cases | awk -v name="$1" '$1 == "model" { model = $2 } $2 == name { print model, $0 }'; }

# generate <name> <flags for spin>: the source of the verifier, in its own directory.
generate() {
	rm -rf "$build/$1" && mkdir -p "$build/$1" && cd "$build/$1" || exit 1
	shift
	spin -a "$@" "$model" >spin.log 2>&1 || { cat spin.log; exit 1; }
}

# compile <flags for the compiler>
compile() {
	$CC -w -DNOFAIR -DCOLLAPSE -DMEMLIM="$MEMORY" "$@" -o pan pan.c >cc.log 2>&1 || { cat cc.log; exit 1; }
}

figure() { sed -n "s/^ *\([0-9.]*\) *$1.*/\1/p" pan.log | head -1; }
broken() { sed -n 's/^pan:[0-9]*: \(.*\) (at depth.*/\1/p' pan.log | head -1; }

# exhaustive: the search saw the whole state space, and found no error.
exhaustive() {
	grep -q 'errors: 0$' pan.log && grep -q '^Full statespace search' pan.log &&
		! grep -Eq 'max search depth too small|Search not completed|out of memory|Bit statespace|aborting' pan.log
}

# verdict <ok or not> <name> <result>
verdict() {
	printf '%-5s %-28s %-40s %10s states %4ss\n' "$1" "$2" "$3" "$(figure 'states, stored')" "$(($(date +%s) - began))"
	[ "$1" = ok ]
}

must_hold() {
	kind=$1 name=$2; shift 2
	began=$(date +%s)
	generate "$name" "$@"
	# To compile a small case takes longer than to search it.
	case $kind in
	ends) compile -Og -DNP; ./pan -m"$DEPTH" -w22 -l >pan.log 2>&1 ;;
	small) compile -O0 -DSAFETY; ./pan -m"$DEPTH" -w20 >pan.log 2>&1 ;;
	*) compile -Og -DSAFETY; ./pan -m"$DEPTH" -w23 >pan.log 2>&1 ;;
	esac
	if exhaustive; then
		verdict ok "$name" "holds"
	else
		verdict WRONG "$name" "$(broken)" || { tail -30 pan.log; exit 1; }
	fi
}

must_fail() {
	rule=$1 promise=$2; shift 2
	began=$(date +%s)
	generate "$rule" -DBREAK_"$rule" -DONLY=ID_"$promise" "$@"
	compile -O0 -DSAFETY; ./pan -m"$DEPTH" -w20 -E >pan.log 2>&1
	if [ "$(broken)" = "assertion violated $promise" ]; then
		verdict ok "$rule" "breaks $promise"
	else
		verdict WRONG "$rule" "does not break $promise: $(broken)"
	fi
}

# tell <flags>: the run that the verifier found.
tell() {
	[ "$(broken)" = "assertion violated $promise" ] || return 1
	spin -T -k "${model##*/}.trail" "$@" "$model" 2>&1 | sed -n 's/^ *\(client\|server\|member\|late\|operator\|--\)/\1/p'
	echo "broken: $promise"
}

# story <rule> <promise> <flags>: breadth first, for a shortest story; depth first if memory is
# too small for that.
story() {
	rule=$1 promise=$2; shift 2
	set -- -DBREAK_"$rule" -DONLY=ID_"$promise" "$@"
	generate "$rule" -Dhidden= "$@"         # breadth first knows no hidden variables
	compile -O1 -DSAFETY -DBFS; ./pan -E >pan.log 2>&1
	tell -Dhidden= "$@" && return
	echo "(not the shortest: memory is too small for that)"
	generate "$rule" "$@"
	compile -O1 -DSAFETY; ./pan -m"$DEPTH" -E >pan.log 2>&1
	tell "$@" || { tail -30 pan.log; exit 1; }
}

do=check
[ "${1-}" != story ] || { do=tell; shift; }
[ $# -eq 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 1; }
name=$1
set -- $(line_of "$name")
model=$PWD/${1-}.pml kind=${2-}
case $do-$kind in
check-hold | check-small | check-ends | check-deep) shift; must_hold "$@" ;;
check-fail | check-limit) shift 2; must_fail "$@" ;;
tell-fail | tell-limit) shift 2; story "$@" ;;
*) echo "the file cases has no '$name' to $do" >&2; exit 1 ;;
esac
