// Package oncehttp answers the Idempotency-Key header: it runs an HTTP request once, and gives its
// response to every repeat of the request. It follows draft-ietf-httpapi-idempotency-key-header.
//
//	idempotent, err := oncehttp.New(o, tenantOf) // o is a once.Once
//	mux.Handle("POST /orders", idempotent(createOrder))
//
// The first request with a key runs the handler, under the lock of package once. Its response is
// held back until it is stored, and then sent. A repeat gets the stored response, with the header
// "Idempotency-Replayed: true". Another request under the same key is refused, and so is a repeat
// while the first request runs, unless [WithWait] lets it wait. If Redis is away, requests are
// refused before the handler runs.
//
// A key belongs to one caller and one path, see [Key]. A request is the same as the first if its
// method, path, query and body are the same. Other headers are not compared.
//
// Responses with status 5xx and 429 are sent, but not stored: they tell the client to repeat, and
// the repeat runs the handler again. A handler that does not know whether its work has happened
// must not answer 5xx or 429. The handler can panic with [http.ErrAbortHandler]: the attempt then
// counts as interrupted. An attempt whose process has died counts as interrupted too. The next
// attempt sees it in [AttemptFrom], and does not begin at all under [once.FailIfInterrupted], which
// suits payments and the like.
//
// The package does not authenticate, limit or compress: such middleware goes around this one. A
// refusal inside of it, such as 401, would be stored and replayed. The handler cannot stream: its
// ResponseWriter has no Flush, Hijack, trailers or deadlines, and sends no 1xx responses. Request
// and response are in memory as a whole. In Redis, the response body takes four bytes for three,
// within [once.WithMaxResult].
package oncehttp
