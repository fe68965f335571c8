package fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/go-relock/relock/fence"
)

// A service with one door refuses the request of a holder that was overtaken.
func ExampleHandler() {
	var doors fence.Memory
	service := httptest.NewServer(fence.Handler(
		func(w http.ResponseWriter, r *http.Request, token int64) error {
			leave, err := doors.Enter(r.Context(), "orders", token)
			if err != nil {
				return err
			}
			defer leave()
			_, err = fmt.Fprintf(w, "written with token %d\n", token)
			return err
		}))
	defer service.Close()

	// The token is that of the caller's section: token, err := lock.Token(section).
	for _, token := range []int64{1, 2, 1} {
		answer, err := put(service.URL, token)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(answer)
	}
	// Output:
	// 200 OK: written with token 1
	// 200 OK: written with token 2
	// 412 Precondition Failed: the token is stale: a later holder of the lock has been here
}

func put(url string, token int64) (string, error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPut, url, nil)
	if err != nil {
		return "", err
	}
	fence.SetToken(r.Header, token)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = w.Body.Close() }()
	body, err := io.ReadAll(w.Body)
	return w.Status + ": " + string(body), err
}

func ExampleMemory() {
	ctx := context.Background()
	var files fence.Memory
	leave, err := files.Enter(ctx, "report.pdf", 8)
	if err != nil {
		fmt.Println(err)
		return
	}
	leave() // after the work

	_, err = files.Enter(ctx, "report.pdf", 7)
	fmt.Println(errors.Is(err, fence.ErrStale))
	// Output: true
}

func ExampleTable_Schema() {
	fmt.Println(fence.SQL(fence.Postgres).Named("billing.fence").Schema())
	// Output:
	// CREATE TABLE IF NOT EXISTS "billing"."fence" (
	// 	resource bytea NOT NULL PRIMARY KEY,
	// 	token bigint NOT NULL
	// )
}
