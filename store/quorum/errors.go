package quorum

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

var (
	errOpen       = store.Unsure(errors.New("no answer yet"))
	errNoMajority = errors.New("no majority of the members agrees")
	errNotAsked   = errors.New("not asked")
)

// answered reports whether err is the word of a member that could be reached.
func answered(err error) bool {
	return err == nil || isBusy(err) || gone(err)
}

// unreached returns the error of a member that could not be reached, if errs has one.
func unreached(errs []error) error {
	for _, err := range errs {
		if unavailable(err) {
			return err
		}
	}
	return nil
}

// count returns the number of members whose errors match.
func count(errs []error, match func(error) bool) (n int) {
	for _, err := range errs {
		if match(err) {
			n++
		}
	}
	return n
}

// where returns the members whose errors match.
func where(errs []error, match func(error) bool) (members []int) {
	for i, err := range errs {
		if match(err) {
			members = append(members, i)
		}
	}
	return members
}

func done(err error) bool        { return err == nil }
func gone(err error) bool        { return errors.Is(err, store.ErrGone) }
func unsure(err error) bool      { return errors.Is(err, store.ErrUnsure) }
func unavailable(err error) bool { return errors.Is(err, store.ErrUnavailable) }
func isBusy(err error) bool      { return errors.As(err, new(*store.Busy)) }

// decided reports whether a majority has confirmed a command on a hold, or does not have the hold.
func (q *quorum) decided(errs []error) bool {
	return count(errs, done) >= q.majority || count(errs, gone) >= q.majority
}

// verdict returns nil if a majority has confirmed a command on a hold, ErrGone if a majority does
// not have the hold, or the reason why neither is known.
func (q *quorum) verdict(ctx context.Context, errs []error) error {
	confirmed, lost := count(errs, done), count(errs, gone)
	someUnsure := count(errs, unsure) > 0
	switch {
	case confirmed >= q.majority:
		return nil
	case lost >= q.majority && count(errs, func(err error) bool { return gone(err) && unsure(err) }) > 0:
		return store.Unsure(store.ErrGone)
	case lost >= q.majority:
		return store.ErrGone
	case confirmed > 0 || someUnsure:
		return store.Unsure(failed(ctx, errs))
	}
	return failed(ctx, errs)
}

// failed makes one error of the errors of the members. The quorum is unavailable if a member is,
// and there is no other reason.
func failed(ctx context.Context, errs []error) error {
	err := named(ctx, errs)
	if count(errs, unavailable) > 0 && (ctx.Err() != nil || errors.Is(err, errNoMajority)) {
		return store.Unavailable(err)
	}
	return err
}

// named makes one error that names the members. Of the kinds of their errors, named keeps those
// that no other member can mend.
func named(ctx context.Context, errs []error) error {
	var texts []string
	failed := errNoMajority
	for i, err := range errs {
		if err == nil {
			continue
		}
		texts = append(texts, fmt.Sprintf("member %d: %v", i+1, err))
		for _, kind := range []error{store.ErrKind, store.ErrNotReplicated, errors.ErrUnsupported} {
			if errors.Is(err, kind) {
				failed = kind
			}
		}
	}
	if ctx.Err() != nil {
		failed = lifetime.Ended(ctx)
	}
	if len(texts) == 0 {
		return failed
	}
	return fmt.Errorf("%w (%s)", failed, strings.Join(texts, "; "))
}
