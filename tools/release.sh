#!/bin/sh
# Makes the commits and tags of a release in this clone, and pushes nothing:
#   tools/release.sh v0.1.0
# One commit writes the version into the changelog and into every module that needs another one of this repository; v0.1.0 and
# a tag for each module that others import point to it. There a module still finds the others beside it ("replace"), so the commit
# passes make test; who imports it does not see that. A command is not installed with a "replace", so the tag of its module
# points to a commit of its own without.
set -eu

cd "$(dirname "$0")/.."

version=${1:-}
go=${GO:-go}
root=$($go list -m)
libraries='telemetry/otel telemetry/prometheus store/etcd store/zookeeper store/sql store/kubernetes ui'
commands='cmd/relock cmd/relockvet'

fail() {
	echo "release: $*" >&2
	exit 2
}

echo "$version" | grep -Eqx 'v[01]\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?' ||
	fail "VERSION is v0.MINOR.PATCH or v1.MINOR.PATCH, and may end in -rc.1; not '$version' (v2 needs another module path)"
branch=$(git symbolic-ref -q --short HEAD) || fail 'no branch is checked out'
[ -z "$(git status --porcelain)" ] || fail 'the tree has changes that are not committed'
tags=$version
for m in $libraries $commands; do
	tags="$tags $m/$version"
done
for tag in $tags; do
	! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || fail "there is a tag $tag already"
done
awk '/^## /{ on = $0 == "## Unreleased" } on && /^\* / { found = 1 } END { exit !found }' CHANGELOG.md ||
	fail 'CHANGELOG.md has nothing under "## Unreleased"'

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

sed "s/^## Unreleased\$/## $version, $(date -u +%Y-%m-%d)/" CHANGELOG.md >"$scratch/changelog"
cat "$scratch/changelog" >CHANGELOG.md
git ls-files '*/go.mod' | while read -r file; do
	for module in $root $(for m in $libraries $commands; do echo "$root/$m"; done); do
		if grep -Eq "^(require)?[[:space:]]+$module v" "$file"; then
			$go mod edit -require="$module@$version" "$file"
		fi
	done
done
git commit -qam "Release $version"
for tag in $version $(for m in $libraries; do echo "$m/$version"; done); do
	git tag -a -m "$tag" "$tag"
done

for m in $commands; do
	cp "$m/go.mod" "$scratch/go.mod"
	for module in $root $(for l in $libraries; do echo "$root/$l"; done); do
		$go mod edit -dropreplace="$module" "$scratch/go.mod"
	done
	export GIT_INDEX_FILE="$scratch/index"
	git read-tree HEAD
	git update-index --cacheinfo "100644,$(git hash-object -w "$scratch/go.mod"),$m/go.mod"
	commit=$(git commit-tree -p HEAD -m "Release $m $version, to be installed from anywhere" "$(git write-tree)")
	unset GIT_INDEX_FILE
	git tag -a -m "$m/$version" "$m/$version" "$commit"
done

echo 'release: made here, and to be pushed together:'
echo "  git push --atomic origin $branch $tags"
