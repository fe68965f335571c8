// Package relockvet finds wrong uses of relock when a program is compiled.
//
//	(cd relock/cmd/relockvet && go install .) # in a clone, as no version is tagged yet
//	go vet -vettool=$(command -v relockvet) ./...
//
// The command works by itself, too. The flag leaves test files out, as tests misuse locks on
// purpose:
//
//	relockvet -test=false ./...
//
// [Analyzer] is for drivers of golang.org/x/tools/go/analysis.
//
// # Rules
//
// Each report says which words to write instead.
//
// A section's context must be kept, as nothing else can unlock the section. The rule holds for each
// method that returns a section's context. A call whose error goes to errors.Is, or to another
// function, expects a refusal, and is not reported.
//
//	_, err := lock.Lock(ctx)       // wrong
//	section, err := lock.Lock(ctx) // right
//
// The error of a call that waits must not be dropped: without the lock, the context is the
// caller's, and the work goes on.
//
//	section, _ := lock.Lock(ctx)   // wrong
//	section, err := lock.Lock(ctx) // right
//
// A section must be unlocked on every path to a return, and before a loop takes the lock again.
// Client.Close does not count.
//
//	section, err := lock.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	if err := ship(section); err != nil {
//		return err // wrong: no Unlock on this path
//	}
//	return lock.Unlock(section)
//
//	section, err := lock.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lock.Unlock(section) // right
//	return ship(section)
//
// A call that takes the lock of an open section gets the context of that section. With another
// context it waits for its own function: in a loop with a deferred Unlock, behind a first Lock, and
// in the function of Do. Readers do not wait for each other. A package that uses semaphores is not
// looked at, as a caller may take several permits.
//
//	for range 3 {
//		section, err := lock.Lock(ctx) // wrong: the first round ends with the function
//		defer lock.Unlock(section)
//	}
//
//	section, err := lock.Lock(ctx)
//	defer lock.Unlock(section)
//	again, err := lock.Lock(ctx)     // wrong
//	again, err := lock.Lock(section) // right
//
//	lock.Do(ctx, func(section context.Context) error { return lock.Do(ctx, ship) })     // wrong
//	lock.Do(ctx, func(section context.Context) error { return lock.Do(section, ship) }) // right
//
// Work in a section gets the section's context. A function that works with both is not reported.
//
//	section, err := lock.Lock(ctx)
//	defer lock.Unlock(section)
//	return ship(ctx)     // wrong: nothing ends it if the lock is lost
//	return ship(section) // right
//
// HandOff ends a section as Unlock does. If HandOff fails the section goes on: unlock it then. With
// a deferred Unlock that is done, and the Unlock after a HandOff does no harm.
//
// Unlock and HandOff need the section's context.
//
//	section, err := lock.Lock(ctx)
//	defer lock.Unlock(ctx)     // wrong
//	defer lock.Unlock(section) // right
//
// Work needs a context that has not ended. Logs and traces only read values, and may have an ended
// one.
//
//	_ = lock.Unlock(section)
//	return notify(section) // wrong: the section is over
//	return notify(ctx)     // right: the context from before the section
//
// The caller's context needs a name of its own where the function goes on after Unlock. The form
// ctx, err := lock.Lock(ctx) with defer lock.Unlock(ctx) is right, as nothing follows the Unlock.
//
//	ctx, err := lock.Lock(ctx)
//	_ = lock.Unlock(ctx)
//	return notify(ctx) // wrong: this is the section's context
//
//	for {
//		ctx, err = lock.Lock(ctx) // wrong: ended since the Unlock of the first round
//		_ = lock.Unlock(ctx)
//	}
//
//	run(func() error {
//		ctx, err = lock.Lock(ctx) // wrong: the function around goes on with the ended context
//		defer lock.Unlock(ctx)
//		return ship(ctx)
//	})
//
//	section, err := lock.Lock(ctx) // right
//
// A section's context must not outlive its Unlock in a variable of a package.
//
//	defer lock.Unlock(section)
//	current = section    // wrong
//	return ship(section) // right
//
// The function of Do works with the context that it is given, and not with the caller's, with that
// of a request, or with one in a field. A function that uses both contexts is not reported.
//
//	lock.Do(ctx, func(context.Context) error { return ship(ctx) })         // wrong
//	lock.Do(ctx, func(context.Context) error { return ship(r.Context()) }) // wrong
//	lock.Do(ctx, func(ctx context.Context) error { return ship(ctx) }) // right
//
// # Not found
//
// The analyzer would rather miss a mistake than report a correct line. It looks at one function at
// a time, and knows of other functions only whether they call Unlock. These mistakes stay:
//
//   - A section that is returned, stored, sent to a channel, or handed to a function that calls
//     Unlock, and is not unlocked there. So the callers of a function that returns a section are
//     not checked.
//   - A section without any Unlock in its function, if the section is handed to an interface, to a
//     function value, or to a function that can reach a lock.
//   - A path on which the error is examined in a way that is not understood, such as by a function
//     of the program. Known are comparisons, errors.Is and errors.As.
//   - A path past an if that may unlock: the condition is taken to say that the section is open.
//   - A section's context in a field of a value that lives longer, or in a goroutine that goes on
//     after the Unlock.
//   - A second Lock of a lock that an index or a call names, such as locks[i] or
//     client.NewLock(name), that another function makes, or that follows on an end of the process
//     (os.Exit).
//   - A deferred function that uses the section's context after the deferred Unlock.
//   - A section that goes on after an error of HandOff, and work with its context after a HandOff.
//   - A lock of another type, such as a wrapper or a fake, and a method that is called as a value.
package relockvet
