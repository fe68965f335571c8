#!/bin/sh
# Runs go vet, staticcheck and errcheck over the packages that are named, all three also after one has found something.
# The versions of the last two are pinned in tools/go.mod. Run it with `make lint`.
#
# A finding that is none is answered where it is: `//lint:ignore SA1012 the reason` at the line for staticcheck, `_ =`
# before the call for errcheck.
set -u

GO=${GO:-go}
cd "$(dirname "$0")/.." || exit 1

# The linters themselves are built without the flags that the packages are read with.
tool() { GOFLAGS=-mod=readonly GOWORK=off "$GO" tool -n -modfile=tools/go.mod "$1"; }
staticcheck=$(tool staticcheck) && errcheck=$(tool errcheck) || exit 1

# What errcheck finds and grep leaves out: what tests and programs clean up and print (where one of these matters, a test
# asserts it); `defer lock.Unlock(ctx)`, the form that the documentation shows; and a receive or a range that takes no value.
cleanup='^([^:]*_test\.go|(cmd|docs|examples|internal/test|lab)/[^:]*):.*\.([Cc]lose|RemoveAll|F?[Pp]rint(f|ln)?)\('
unlock='^([^:]*_test\.go|examples/[^:]*):.*\.Unlock\('
receive='^[^:]*:[0-9:]*[[:space:]]*(<-|for range )'

rc=0
"$GO" vet "$@" || rc=1
"$staticcheck" -checks 'all,-QF*' "$@" || rc=1 # QF suggests another form
found=$("$errcheck" "$@") || [ $? -eq 1 ] || rc=1 # 1: it has found something
printf '%s\n' "$found" | grep -vE -e "$cleanup" -e "$unlock" -e "$receive" -e '^$' && rc=1
exit $rc
