// Package adapters has locks in the form in which other projects want them: tusd, gocron, goose,
// certmagic, and servers of HTTP and gRPC. docs/ADAPTERS.md shows them, to be copied.
//
// The interfaces of others have a context for the wait, and none for the section. So each adapter
// says whether its project hears of a lock that is lost.
package adapters
