// Package ticket lets sections travel: a section of a mutex is lent to another process, or
// continued there, by a ticket. A ticket can be signed, for a way that is not trusted. See
// ticket/README.md for recipes.
//
//	t, err := ticket.Lend(section, lock)          // for Borrow. HandOff, ToResume: for Accept
//	signed, err := signer.Sign(t, "shipping")     // for the service shipping, and no other
//	ticket.Set(request.Header, signed)
//
//	mux.Handle("POST /orders/{id}/ship", verifier.Handler(lockOf, ship)) // in the service shipping
//
// A signed ticket is a JSON Web Token. Its signature is Ed25519 (EdDSA), and no other is accepted.
// The token names its issuer, its audience, and all of a [Ticket]: use, lock, hold, fencing token,
// lease and expiry. A ticket is signed, and not encrypted. A reader of the ticket sees its fields,
// and can use the ticket once at the service of its audience. So send tickets over TLS. OTel
// baggage is no place for a ticket: baggage goes to every service below, and into logs.
//
// The signature says who has made the ticket, and that nobody has changed it. The store says
// whether the ticket is still good: a ticket that was used is [relock.ErrTicket], and a ticket of a
// hold that is gone is [relock.ErrLockLost], whatever the signature says. The store does not see
// the signature. Whoever may write the keys of the locks can enter them without a ticket: the
// rights of the Redis users, see docs/OPERATIONS.md, keep strangers out.
package ticket
