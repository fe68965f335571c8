// Package dbtest gives tests real SQL servers.
//
// [Postgres] and [MariaDB] each start one server for the test binary, at their first call, and make
// a new and empty database in it at each call. A server listens on a free loopback port, keeps its
// data in a directory of its own, and trades durability for speed. [Main] stops the servers and
// removes their data. On Linux a server also ends when the test binary is killed; its directory
// stays.
//
// The servers refuse to run as root. A test that runs as root starts them as the users postgres and
// mysql, which the packages of the servers make.
//
// Tests are skipped without a server, or fail if RELOCK_REQUIRE_REDIS is 1.
package dbtest
