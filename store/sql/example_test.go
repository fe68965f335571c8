package relocksql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/go-relock/relock"
	relocksql "github.com/go-relock/relock/store/sql"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "relock")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "locks.db")+
		"?_pragma=busy_timeout(50)&_pragma=journal_mode(WAL)")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := relocksql.Create(ctx, db, relocksql.SQLite); err != nil {
		log.Fatal(err)
	}

	store, err := relocksql.New(db, relocksql.SQLite)
	if err != nil {
		log.Fatal(err)
	}
	client, err := relock.Open(store)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()

	orders := client.NewLock("orders")
	err = orders.Do(ctx, func(section context.Context) error {
		token, err := orders.Token(section)
		fmt.Println("a token was drawn:", token > 0)
		return err
	})
	fmt.Println("error:", err)
	// Output:
	// a token was drawn: true
	// error: <nil>
}
