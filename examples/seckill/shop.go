package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/once"
)

const (
	permits  = 20              // clicks that may wait at a time, in all instances together
	patience = 5 * time.Second // the longest wait of a click that has a permit
)

var (
	errBusy    = errors.New("busy, click again later") // 503 in an HTTP service
	errSoldOut = errors.New("sold out")                // 409
)

// order is what a buyer gets.
type order struct {
	User   string
	Number int // 1 for the first item that is sold
	Price  int
}

// shop is one instance of the service, for one product.
type shop struct {
	rdb     *redis.Client
	locks   *relock.Client
	once    *once.Once
	product string

	queue *relock.Lock // a semaphore
	sale  *relock.Lock

	stockKey, ordersKey string // beside the lock of the sale, in its slot of a cluster
}

func newShop(options *redis.Options, prefix, product string) (*shop, error) {
	s := &shop{
		rdb:       redis.NewClient(options),
		product:   product,
		stockKey:  prefix + "{sale:" + product + "}:stock",
		ordersKey: prefix + "{sale:" + product + "}:orders",
	}
	var err error
	if s.locks, err = relock.New(s.rdb, relock.WithPrefix(prefix)); err != nil {
		return nil, errors.Join(err, s.rdb.Close())
	}
	s.queue = s.locks.NewSemaphore("queue:"+product, permits)
	s.sale = s.locks.NewLock("sale:" + product)
	// A record has to outlive every repeated click. A shop would keep the default, a day.
	s.once, err = once.New(s.locks, once.WithRetention(10*time.Minute))
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close ends everything in the opposite order of its start.
func (s *shop) close() error {
	if s.once != nil {
		s.once.Close()
	}
	s.locks.Close()
	return s.rdb.Close()
}

// buy answers one click. A click that finds the queue full is refused at once, in one round trip,
// before it costs anything else. A second click of a user gets the order of the first.
//
// The semaphore bounds all instances together. A buffered channel in each process needs no round
// trip, and is enough if the bound of the whole may grow with the number of instances.
func (s *shop) buy(ctx context.Context, user string) (o order, replayed bool, err error) {
	permit, err := s.queue.TryLock(ctx)
	if err != nil {
		return order{}, false, busyIfLocked(err)
	}
	defer s.queue.Unlock(permit)

	// errSoldOut and errBusy are not stored: the shop may get new stock.
	return once.Do(permit, s.once, "buy:"+s.product+":"+user,
		func(ctx context.Context, _ once.Attempt) (order, error) { return s.sell(ctx, user) })
}

// sell waits for its turn, finds the price, and writes the sale.
//
// The lock keeps the stock as it is while the price is calculated outside of Redis. Without such a
// step no lock is needed: saleScript alone checks and writes in one step.
func (s *shop) sell(ctx context.Context, user string) (o order, err error) {
	// An interrupted attempt may have written the order, and taken the last item for it.
	if written, err := s.rdb.HGet(ctx, s.ordersKey, user).Bytes(); !errors.Is(err, redis.Nil) {
		return o, errors.Join(err, json.Unmarshal(written, &o))
	}
	// The stock never rises here, so 0 is final, and the crowd need not wait for the lock to learn
	// it.
	if left, err := s.rdb.Get(ctx, s.stockKey).Int(); err != nil || left == 0 {
		return order{}, soldOutOr(err)
	}
	err = s.sale.DoFor(ctx, patience, func(ctx context.Context) error {
		offered, err := s.offer(ctx, user)
		if err == nil {
			o, err = s.write(ctx, offered, s.sale.Eval)
		}
		return err
	})
	return o, busyIfLocked(err)
}

// offer looks at the stock, and calculates what the next item costs.
func (s *shop) offer(ctx context.Context, user string) (order, error) {
	left, err := s.rdb.Get(ctx, s.stockKey).Int()
	if err != nil || left == 0 {
		return order{}, soldOutOr(err)
	}
	return order{User: user, Number: inStock - left + 1, Price: price(left)}, nil
}

// saleScript writes an order, and takes the item out of stock.
//
// The script returns the order of a user who has one. An attempt that follows an interrupted one
// thereby finds the order that the interrupted one may have written, and changes nothing.
const saleScript = `
local order = redis.call('HGET', KEYS[2], ARGV[1])
if order then return order end
if tonumber(redis.call('GET', KEYS[1])) < 1 then return false end
redis.call('DECR', KEYS[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return ARGV[2]`

// write writes the sale. eval is Lock.Eval of the sale, which writes only while the section has the
// lock: a holder that was stopped past the end of its lease would write an old price.
func (s *shop) write(ctx context.Context, o order, eval evalFunc) (order, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return order{}, err
	}
	reply, err := eval(ctx, saleScript, []string{s.stockKey, s.ordersKey}, o.User, data)
	if err != nil {
		return order{}, err
	}
	written, isText := reply.(string)
	if !isText {
		return order{}, errSoldOut
	}
	err = json.Unmarshal([]byte(written), &o)
	return o, err
}

// evalFunc runs a script: [relock.Lock.Eval], or Redis without a lock.
type evalFunc = func(ctx context.Context, script string, keys []string, args ...any) (any, error)

// price plays a pricing service outside of Redis: the last half of the items is dearer.
func price(left int) int {
	time.Sleep(time.Millisecond)
	if left > inStock/2 {
		return 10
	}
	return 15
}

func soldOutOr(err error) error {
	if err != nil {
		return fmt.Errorf("read the stock: %w", err)
	}
	return errSoldOut
}

// busyIfLocked makes a wait that was refused or too long the answer of a busy shop.
func busyIfLocked(err error) error {
	if errors.Is(err, relock.ErrLocked) {
		return errBusy
	}
	return err
}
