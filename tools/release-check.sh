#!/bin/sh
# Makes a release of what is here, in a copy, and uses it as others would: imports each library into a module of its own,
# builds that, and installs the commands. go fetches the release from the copy as it would from its real home; everything else
# comes from the module cache, or from where go gets modules.
set -eu

cd "$(dirname "$0")/.."

version=v0.0.0-check.1
go=${GO:-go}
root=$($go list -m)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

mkdir "$scratch/release"
tar -cf - --exclude=./.git . | tar -xf - -C "$scratch/release"
# Just after a release nobody has written down a change yet.
grep -qx '## Unreleased' CHANGELOG.md || awk '!done && /^## / { print "## Unreleased\n\n* Something.\n"; done = 1 } 1' \
	CHANGELOG.md >"$scratch/release/CHANGELOG.md"
(
	cd "$scratch/release"
	git init -q
	for setting in user.name=release-check user.email=release-check@localhost commit.gpgSign=false tag.gpgSign=false; do
		git config "${setting%%=*}" "${setting#*=}"
	done
	git add -A
	git commit -qm 'What is here'
	GO=$go sh tools/release.sh "$version" >/dev/null
	[ -z "$(git status --porcelain)" ] || {
		echo 'release-check: the release leaves changes in the tree' >&2
		exit 1
	}
)
for file in $(git -C "$scratch/release" diff --name-only HEAD~ -- '*go.mod'); do
	(cd "$scratch/release/$(dirname "$file")" && $go mod tidy -diff) # as make tidy-check will
done

# Of this repository nothing is in a cache, and nothing of it stays in one.
GOPROXY="file://$($go env GOMODCACHE)/cache/download,$($go env GOPROXY)"
GOMODCACHE="$scratch/modules"
GOPRIVATE=$root
GOFLAGS='-modcacherw -trimpath' # trimpath: what was built stays valid for the next check
GIT_CONFIG_COUNT=1
GIT_CONFIG_KEY_0="url.file://$scratch/release/.insteadOf"
GIT_CONFIG_VALUE_0="https://$root"
export GOPROXY GOMODCACHE GOPRIVATE GOFLAGS GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0
unset GIT_CONFIG_PARAMETERS GONOPROXY GONOSUMDB

# quietly COMMAND...: shows what it printed only if it fails. go tells of each download.
quietly() {
	"$@" >"$scratch/log" 2>&1 || {
		cat "$scratch/log" >&2
		echo "release-check: failed: $*" >&2
		exit 1
	}
}

mkdir "$scratch/service"
cd "$scratch/service"
quietly $go mod init example.com/service
cat >main.go <<EOF
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"

	"$root"
	"$root/event"
	_ "$root/store/etcd"
	_ "$root/store/kubernetes"
	relockotel "$root/telemetry/otel"
	relockprom "$root/telemetry/prometheus"
	_ "$root/store/sql"
	_ "$root/ui"
	_ "$root/store/zookeeper"
)

func main() {
	telemetry, err := relockotel.New()
	if err != nil {
		panic(err)
	}
	client, err := relock.New(redis.NewClient(&redis.Options{}),
		relock.WithHooks(event.Join(relockprom.New().Hooks(), telemetry.Hooks())))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	fmt.Fprintln(os.Stdout, client.NewLock("orders").Held(context.Background()))
}
EOF
libraries='telemetry/otel telemetry/prometheus store/etcd store/zookeeper store/sql store/kubernetes ui'
quietly $go get "$root@$version" $(for m in $libraries; do echo "$root/$m@$version"; done)
quietly $go mod tidy
quietly $go build -o "$scratch/bin/service"
got=$("$scratch/bin/service")
[ "$got" = false ] || {
	echo "release-check: a lock that nobody has is held: '$got'" >&2
	exit 1
}
for m in "$root" $(for m in $libraries; do echo "$root/$m"; done); do
	got=$($go list -m "$m")
	[ "$got" = "$m $version" ] || {
		echo "release-check: the service has got $got" >&2
		exit 1
	}
done

export GOBIN="$scratch/bin"
quietly $go install "$root/cmd/relock@$version"
got=$("$scratch/bin/relock" --version)
[ "$got" = "relock version $version" ] || {
	echo "release-check: relock --version says '$got'" >&2
	exit 1
}
quietly $go install "$root/cmd/relockvet@$version"
quietly "$scratch/bin/relockvet" ./...
echo "release-check: the libraries can be imported, the commands can be installed"
