package oncehttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/once/http"
)

func Example() {
	server, err := miniredis.Run() // in your service: a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	locks, err := relock.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	o, err := once.New(locks)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer o.Close()

	tenantOf := func(*http.Request) (string, error) { return "tenant-7", nil } // from your authentication
	idempotent, err := oncehttp.New(o, tenantOf)
	if err != nil {
		fmt.Println(err)
		return
	}
	orders := 0
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idempotent(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		orders++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "order ", orders)
	})))

	order := func(book string) {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(book))
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%s: %d, replayed: %t\n", book, w.Code, w.Header().Get("Idempotency-Replayed") == "true")
	}
	order("Emma")
	order("Emma") // the client has not seen the response, and repeats
	order("Persuasion")
	fmt.Println("orders:", orders)
	// Output:
	// Emma: 201, replayed: false
	// Emma: 201, replayed: true
	// Persuasion: 422, replayed: false
	// orders: 1
}
