// Package budget has no code. Its test counts what the hot paths cost the client: allocations,
// bytes, commands and goroutines, on connections that answer by themselves.
package budget
