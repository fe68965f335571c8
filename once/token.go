package once

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

var (
	// ErrUnknownToken reports a one-time token that was never issued, or has expired.
	ErrUnknownToken = errors.New("once: unknown token")
	// ErrRedeemed reports a one-time token that another caller has redeemed.
	ErrRedeemed = errors.New("once: the token was redeemed by another caller")
)

var (
	//go:embed scripts/redeem.lua
	redeemSource string
	redeemScript = redis.NewScript(redeemSource)
)

// Issue makes a one-time token for data, such as a form or a link that counts once. The token is
// 130 random bits, and Redis keeps only its hash. The token expires after ttl, redeemed or not. ttl
// is whole milliseconds, at least one.
func (o *Once) Issue(ctx context.Context, data string, ttl time.Duration) (token string, err error) {
	if ttl < time.Millisecond || ttl%time.Millisecond != 0 {
		return "", fmt.Errorf("%w: Issue: a ttl of %s: must be whole milliseconds, at least 1ms", relock.ErrInvalid, ttl)
	}
	token = rand.Text()
	key := o.ticket(token)
	_, err = o.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, key, "data", data)
		p.PExpire(ctx, key, ttl)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("once: issue: %w", err)
	}
	return token, nil
}

// Redeem returns the data of a token to the first caller, and to no other. caller names the
// redeemer, such as a session or a request. The same caller gets the data again, as after a lost
// answer. Errors: [ErrUnknownToken], [ErrRedeemed], and errors of Redis, after which Redeem may be
// called again.
func (o *Once) Redeem(ctx context.Context, token, caller string) (data string, err error) {
	if caller == "" {
		return "", fmt.Errorf("%w: Redeem: the caller has no name", relock.ErrInvalid)
	}
	reply, err := redeemScript.Run(ctx, o.rdb, []string{o.ticket(token)}, caller).Slice()
	if err != nil {
		return "", fmt.Errorf("once: redeem: %w", err)
	}
	switch {
	case len(reply) == 2:
		data, _ = reply[1].(string)
		return data, nil
	case len(reply) == 1 && reply[0] == int64(2):
		return "", ErrRedeemed
	default:
		return "", ErrUnknownToken
	}
}

// ticket returns the key of a token.
func (o *Once) ticket(token string) string {
	sum := sha256.Sum256([]byte(token))
	return o.locks.NewLock("once-token:"+hex.EncodeToString(sum[:])).Key() + ":ticket"
}
