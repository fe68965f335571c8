package oncesql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/once/sql"
)

// Order is the input of the example, and Receipt its result.
type (
	Order struct {
		Customer string
		Cents    int64
	}
	Receipt struct {
		Number int64
	}
)

// A request that is sent again, by the client or by a queue, books the order once.
func ExampleDo() {
	book := func(ctx context.Context, once *oncesql.Store, requestID string, order Order) (Receipt, error) {
		receipt, replayed, err := oncesql.Do(ctx, once, requestID,
			func(ctx context.Context, tx *sql.Tx) (r Receipt, err error) {
				err = tx.QueryRowContext(ctx,
					"INSERT INTO bookings (customer, cents) VALUES ($1, $2) RETURNING id",
					order.Customer, order.Cents).Scan(&r.Number)
				return r, err
			}, oncesql.Input(order))
		switch {
		case errors.Is(err, oncesql.ErrMismatch):
			return receipt, fmt.Errorf("request %s was sent with another order before: %w", requestID, err)
		case err != nil:
			return receipt, err // to send the request again is safe
		case replayed:
			fmt.Println("request", requestID, "was booked before")
		}
		return receipt, nil
	}

	var db *sql.DB // from sql.Open
	once := oncesql.New(db, fence.Postgres)
	if _, err := book(context.Background(), once, "5f2c", Order{Customer: "Ada", Cents: 1999}); err != nil {
		fmt.Println(err)
	}
}
