// Package ui is a page that shows who holds which lock, who waits for whom, and who had a lock
// before, for the locks of package relock.
//
//	mux.Handle("/locks/", login(&ui.Handler{Locks: client}))
//
// The page is for people who may know the names of all locks and processes: mount the Handler
// behind the login of the service. The Handler has no login of its own. "relock ui" shows the same
// page on this machine.
//
// # What is asked of the store
//
// All viewers share one look at the store: [relock.Client.List], then the queues and the waits of at
// most 256 locks. Behind each look there is a pause of two seconds, and of nine times the length of
// the look, so that looking takes a tenth of the time at most. Nobody looks while nobody has the page open.
//
// # History
//
// The store knows the present only. With the hooks of a [History] each process also writes the
// ends of its holds, and its long waits, to one stream in Redis:
//
//	history := &ui.History{Redis: rdb}
//	defer history.Close() // after client.Close
//	client, err := relock.New(rdb, relock.WithHooks(history.Hooks()))
//	…
//	page := &ui.Handler{Locks: client, History: history}
//
// # Buttons
//
// The page changes nothing, unless [Handler.Actions] has a logger. The page then has buttons that
// ask the holders of a lock to give it back, and that take the lock from them. Each use needs the
// name of the lock typed in, and is a line in the log.
package ui
