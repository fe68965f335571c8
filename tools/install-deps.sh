#!/bin/sh
# Installs what the tests need beyond Go and make, and only what is missing. With the argument redis,
# that is what make test needs:
#   redis-server                              the tests start their own servers on free ports
# Without an argument, it is what make test-all needs:
#   redis-sentinel, redis-cli                 as redis-server
#   a C compiler (Linux only)                 go test -race links with it
#   git                                       the check of a release
#   spin                                      checks the model in lab/model
#   prometheus, promtool                      the alerts and the dashboard in examples/observability
#   faketime (Linux only)                     sets the clock of a server in the tests
#   PostgreSQL, MariaDB (server and client)   the tests of fence/ start their own servers on free ports
#   ZooKeeper, with a Java that runs it       the tests of store/zookeeper start their own servers on free ports
#   pgbouncer                                 the tests of store/sql put it before PostgreSQL
#   etcd                                      the tests of store/etcd and store/kubernetes start their own servers on free ports
# With the argument browser, it is what make browser needs, too:
#   chromium                                  the scenes of ui/browser, headless
# With the argument java, it is what make interop needs, too:
#   mvn, and the JDK that mvn finds           the Java side of lab/interop
# Set RELOCK_NO_INSTALL=1 to be told what is missing instead.
set -eu

cd "$(dirname "$0")/.."

with=${1:-}

# Chromium has a name of its own in each system.
has_browser() {
	has chromium-headless-shell || has chromium || has chromium-browser || has google-chrome ||
		[ -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ]
}

has() { command -v "$1" >/dev/null 2>&1; }

# Servers are often outside of PATH: Debian has those of PostgreSQL in a directory for each version.
has_server() {
	has "$1" && return
	for path in /usr/lib/postgresql/*/bin/"$1" /usr/sbin/"$1" /usr/libexec/"$1"; do
		[ ! -x "$path" ] || return 0
	done
	return 1
}

# Maven says which Java it runs with; that has to be a JDK, with a compiler.
has_jdk() {
	home=$(mvn -B -v 2>/dev/null | sed -n 's/^Java version:.* runtime: *//p')
	[ -n "$home" ] && [ -x "$home/bin/javac" ]
}

missing() {
	has redis-server || printf 'redis-server '
	[ "$with" != redis ] || return 0
	for program in redis-sentinel redis-cli; do
		has "$program" || printf '%s ' "$program"
	done
	if [ "$(uname -s)" = Linux ]; then
		compiler=$("${GO:-go}" env CC 2>/dev/null || echo gcc)
		has "${compiler%% *}" || printf '%s ' "${compiler%% *}"
		has faketime || printf 'faketime '
	fi
	has git || printf 'git '
	if [ -d internal/test/dbtest ]; then
		{ has_server initdb && has_server postgres && has psql; } || printf 'postgresql '
		{ has_server mariadb-install-db && has_server mariadbd && has mariadb; } || printf 'mariadb '
	fi
	[ ! -d store/zookeeper ] || { [ -f /usr/share/java/zookeeper.jar ] && has java; } || printf 'zookeeper '
	[ ! -d store/sql ] || has_server pgbouncer || printf 'pgbouncer '
	[ ! -d store/etcd ] || has_server etcd || printf 'etcd '
	[ ! -d lab/model ] || has spin || printf 'spin '
	[ ! -d examples/observability ] || { has promtool && has prometheus; } || printf 'prometheus '
	[ "$with" != browser ] || has_browser || printf 'chromium '
	if [ "$with" = java ]; then
		has mvn || printf 'mvn '
		has_jdk || printf 'jdk '
	fi
}

give_up() {
	{
		echo "relock: missing: $(missing)"
		echo "relock: $1"
		if [ "$with" = redis ]; then
			echo "relock: install Redis 7.0 or newer, then run this again."
		else
			echo "relock: install Redis 7.0 or newer (server, sentinel and cli) and git and PostgreSQL and MariaDB (server and client) and ZooKeeper and PgBouncer and etcd and spin and Chromium and Prometheus and, on Linux, a C compiler and faketime${with:+ and, for make interop, a JDK (17 or newer) and Maven}; then run this again."
		fi
	} >&2
	exit 1
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif has sudo; then
		sudo "$@"
	else
		give_up "not root, and there is no sudo to install them with"
	fi
}

if [ -z "$(missing)" ]; then
	echo "deps: everything is there, $(redis-server --version | cut -d ' ' -f 1-3)"
	exit 0
fi
[ -z "${RELOCK_NO_INSTALL:-}" ] || give_up "RELOCK_NO_INSTALL is set, so nothing was installed"
echo "deps: installing what is missing: $(missing)"

want_redis=
want_compiler=
want_git=
want_postgresql=
want_mariadb=
want_zookeeper=
want_pgbouncer=
want_etcd=
want_spin=
want_prometheus=
want_faketime=
want_browser=
want_mvn=
want_jdk=
for program in $(missing); do
	case $program in
	redis-server) want_redis=redis-server ;;
	redis-*) want_redis='redis-server redis-sentinel redis-tools' ;;
	git) want_git=1 ;;
	postgresql) want_postgresql=1 ;;
	mariadb) want_mariadb=1 ;;
	zookeeper) want_zookeeper=1 ;;
	pgbouncer) want_pgbouncer=1 ;;
	etcd) want_etcd=1 ;;
	spin) want_spin=1 ;;
	prometheus) want_prometheus=1 ;;
	faketime) want_faketime=1 ;;
	chromium) want_browser=1 ;;
	mvn) want_mvn=1 ;;
	jdk) want_jdk=1 ;;
	*) want_compiler=1 ;;
	esac
done

if has apt-get; then
	# redis-tools has redis-cli. The packages of servers may start one on its usual port (2379, 3306,
	# 5432, 6379); the tests do not touch it.
	as_root apt-get update ||
		echo "deps: apt-get update failed; trying with the package lists that are there"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
		$want_redis ${want_compiler:+gcc libc6-dev} \
		${want_git:+git} ${want_spin:+spin} ${want_prometheus:+prometheus} \
		${want_faketime:+faketime} ${want_pgbouncer:+pgbouncer} \
		${want_postgresql:+postgresql postgresql-client} ${want_mariadb:+mariadb-server mariadb-client} \
		${want_zookeeper:+zookeeper default-jre-headless} \
		${want_etcd:+etcd-server} \
		${want_mvn:+maven} ${want_jdk:+default-jdk-headless} ||
		give_up "apt-get could not install them"
	# Debian has the headless shell alone; elsewhere the package is the whole browser.
	[ -z "$want_browser" ] || as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium-headless-shell ||
		as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium ||
		give_up "apt-get could not install chromium"
elif has brew; then
	[ -z "$want_redis" ] || brew install redis || give_up "brew could not install redis"
	[ -z "$want_compiler" ] || brew install gcc || give_up "brew could not install gcc"
	[ -z "$want_git" ] || brew install git || give_up "brew could not install git"
	[ -z "$want_postgresql" ] || brew install postgresql || give_up "brew could not install postgresql"
	[ -z "$want_mariadb" ] || brew install mariadb || give_up "brew could not install mariadb"
	[ -z "$want_pgbouncer" ] || brew install pgbouncer || give_up "brew could not install pgbouncer"
	[ -z "$want_etcd" ] || brew install etcd || give_up "brew could not install etcd"
	[ -z "$want_spin" ] || brew install spin || give_up "brew could not install spin"
	[ -z "$want_prometheus" ] || brew install prometheus || give_up "brew could not install prometheus"
	[ -z "$want_browser" ] || brew install --cask google-chrome || give_up "brew could not install google-chrome"
	[ -z "$want_mvn$want_jdk" ] || brew install openjdk maven || give_up "brew could not install openjdk and maven"
elif has dnf; then
	# Newer Fedora has Valkey in place of Redis, with the old names in a package of their own.
	if [ -n "$want_redis" ]; then
		as_root dnf install -y redis || as_root dnf install -y valkey valkey-compat-redis ||
			give_up "dnf could not install redis"
	fi
	[ -z "$want_compiler" ] || as_root dnf install -y gcc glibc-devel || give_up "dnf could not install gcc"
	[ -z "$want_git" ] || as_root dnf install -y git || give_up "dnf could not install git"
	[ -z "$want_postgresql" ] || as_root dnf install -y postgresql-server postgresql ||
		give_up "dnf could not install postgresql-server and postgresql"
	[ -z "$want_mariadb" ] || as_root dnf install -y mariadb-server mariadb ||
		give_up "dnf could not install mariadb-server and mariadb"
	[ -z "$want_pgbouncer" ] || as_root dnf install -y pgbouncer || give_up "dnf could not install pgbouncer"
	[ -z "$want_etcd" ] || as_root dnf install -y etcd || give_up "dnf could not install etcd"
	[ -z "$want_spin" ] || as_root dnf install -y spin || give_up "dnf could not install spin"
	[ -z "$want_prometheus" ] || as_root dnf install -y golang-github-prometheus || give_up "dnf could not install prometheus"
	[ -z "$want_faketime" ] || as_root dnf install -y libfaketime || give_up "dnf could not install libfaketime"
	[ -z "$want_browser" ] || as_root dnf install -y chromium || give_up "dnf could not install chromium"
	[ -z "$want_mvn$want_jdk" ] || as_root dnf install -y java-devel maven || give_up "dnf could not install java-devel and maven"
else
	give_up "found none of apt-get, brew and dnf to install them with"
fi

[ -z "$(missing)" ] || give_up "the packages were installed, but something is still missing"
echo "deps: everything is there, $(redis-server --version | cut -d ' ' -f 1-3)"
