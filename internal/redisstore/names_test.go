package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// Where is a lock kept, and which names are refused?

// slot is the cluster slot of a key, by the letter of the Redis Cluster specification.
func slot(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if shut := strings.IndexByte(key[open+1:], '}'); shut > 0 {
			key = key[open+1 : open+1+shut]
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return crc % 16384
}

// crcTable is that of CRC16/XMODEM.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			top := crc >> 15
			crc = crc<<1 ^ top*0x1021
		}
		table[i] = crc
	}
	return table
}()

func TestSlot(t *testing.T) {
	for key, want := range map[string]uint16{
		// The check value of the CRC, and what CLUSTER KEYSLOT says.
		"123456789": 12739, "": 0, "foo": 12182, "user1000": 3443, "{user1000}.following": 3443, "{bar": 4015, "foo{{bar}}zap": 4015,
		"bar": 5061, "foo{bar}{zap}": 5061, "foo{}{bar}": 8363, "a}b{c": 13587, "{}x": 10595,
	} {
		require.Equal(t, want, slot(key), key)
	}
}

const ticketID = "2d9b2bbc-66a3-4be3-b1bb-6c1e1bd4a2f0"

// keysOf are the keys and channels of a lock.
func keysOf(base string) []string {
	channel := (&nativeStore{}).topic(store.Claim{Name: base, ID: "{}x}{y:1:2"}).Channel
	ticket := base + ticketInfix + ticketID
	return []string{base, base + queueSuffix, base + tokenSuffix, ticket, channel}
}

// fits requires that all keys of a lock share a slot, and begin with the prefix and the base.
func fits(t *testing.T, prefix, base string) {
	t.Helper()
	for _, key := range keysOf(base) {
		if slot(key) != slot(base) || !strings.HasPrefix(key, base) || !strings.HasPrefix(key, prefix) {
			t.Fatalf("%q does not fit to %q with prefix %q", key, base, prefix)
		}
	}
	again, err := baseKey(prefix, base)
	if err != nil || again != base {
		t.Fatalf("%q becomes %q: %v", base, again, err)
	}
}

// explained requires that a refusal says what is allowed.
func explained(t *testing.T, err error, name string) {
	t.Helper()
	require.ErrorContains(t, err, fmt.Sprintf("%q", name))
	require.Regexp(t, "must not end in|must not begin with|must have", err.Error())
}

// oneName is the shortest name of a lock: "{x}" is "x", where x alone would get that tag, and a
// name with a tag may have the prefix already.
func oneName(prefix, name string) string {
	if tagged(name) {
		name = strings.TrimPrefix(name, prefix)
	}
	inner, ok := strings.CutPrefix(name, "{")
	if !ok {
		return name
	}
	if inner, ok = strings.CutSuffix(inner, "}"); !ok || inner == "" || tagged(inner) || inner[0] == '}' {
		return name
	}
	return inner
}

// tagged says, by the specification, whether a key has a hash tag.
func tagged(key string) bool {
	open := strings.IndexByte(key, '{')
	return open >= 0 && strings.IndexByte(key[open+1:], '}') > 0
}

func TestNamesWithBracesInEveryPosition(t *testing.T) {
	alphabet := []string{"{", "}", "a", ":queue", ticketInfix + ticketID}
	names := []string{""}
	for last := 0; len(names) < 4000; {
		for end := len(names); last < end; last++ {
			for _, c := range alphabet {
				names = append(names, names[last]+c)
			}
		}
	}
	for _, prefix := range []string{prefix, "", "{app}:", "}", "{}", "{app", "x{}{y}"} {
		t.Run(prefix, func(t *testing.T) {
			owners := map[string]string{} // of each key: the shortest name of the lock
			fine, bad := 0, 0
			for _, name := range names[1:] {
				base, err := baseKey(prefix, name)
				if err != nil {
					explained(t, err, name)
					bad++
					continue
				}
				fine++
				fits(t, prefix, base)
				for _, key := range keysOf(base)[:4] {
					if other, is := owners[key]; is {
						require.Equal(t, other, oneName(prefix, name), "%q belongs to two locks", key)
					}
					owners[key] = oneName(prefix, name)
				}
			}
			require.Equal(t, strings.Contains(prefix, "{}"), fine == 0)
			require.Positive(t, bad)
		})
	}
}

func TestWhereALockIs(t *testing.T) {
	for _, c := range []struct{ prefix, name, base string }{
		{prefix, "orders", "relock:{orders}"},
		{prefix, "{orders}", "relock:{orders}"},
		{prefix, "relock:{orders}", "relock:{orders}"},
		{prefix, "relock:orders", "relock:{relock:orders}"},
		{prefix, "{user:7}:cart", "relock:{user:7}:cart"},
		{prefix, "cart:{user:7}", "relock:cart:{user:7}"},
		{prefix, "a{b", "relock:{a{b}"},
		{prefix, "a{}b", "relock:{a{}b}"},
		{prefix, "x:queue", "relock:{x:queue}"},
		{prefix, "x:waits", "relock:{x:waits}"},
		{prefix, "{x}:loans:7", "relock:{x}:loans:7"},
		{prefix, "a}b", "relock:{a}b}"},
		{"", "orders", "{orders}"},
		{"", "{orders}", "{orders}"},
		{"{app}:", "orders", "{app}:{orders}"},
		{"{app}:", "{user:7}", "{app}:{user:7}"},
	} {
		base, err := baseKey(c.prefix, c.name)
		require.NoError(t, err)
		require.Equal(t, c.base, base, "%q with prefix %q", c.name, c.prefix)
	}
}

func TestNamesThatAreRefused(t *testing.T) {
	for _, c := range []struct{ prefix, name, says string }{
		{prefix, "{x}:queue", `must not end in ":queue"`},
		{prefix, "a{x}:token", `must not end in ":token"`},
		{prefix, "a{x}:loans", `must not end in ":loans"`},
		{prefix, "{x}:rw", `must not end in ":rw"`},
		{prefix, "{x}:permits", `must not end in ":permits"`},
		{prefix, "relock:{x}:token", `must not end in ":token"`},
		{prefix, "{a:1:1}:waits", `must not end in ":waits"`},
		{prefix, "{x}" + ticketInfix + ticketID, `must not end in ":loans:2d9b2bbc-`},
		{prefix, "}", "must not begin with '}'"},
		{prefix, "}{x", "must not begin with '}'"},
		{"{}", "x", "a prefix must have no '{', or a whole tag such as {app}"},
	} {
		_, err := baseKey(c.prefix, c.name)
		require.ErrorContains(t, err, c.says, "%q with prefix %q", c.name, c.prefix)
		explained(t, err, c.name)
	}
}

func TestAsksThatAreRefused(t *testing.T) {
	s, err := New(redistest.Shared(t).Client(), Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
	require.NoError(t, err)
	fine := store.Claim{Name: "x", ID: "a:1:1", TTL: minute, Limit: 1, Acks: store.Acks{Replicas: 1, Timeout: time.Second}}
	got, err := s.Check(fine)
	require.NoError(t, err)
	want := fine
	want.Name = "relock:{x}"
	require.Equal(t, want, got)
	for says, change := range map[string]func(a *store.Claim){
		"empty":       func(a *store.Claim) { a.Name = "" },
		"and not 2":   func(a *store.Claim) { a.Limit = 2 },
		"lets one in": func(a *store.Claim) { a.Limit = store.Unlimited },
		"ReadTimeout": func(a *store.Claim) { a.Acks.Timeout = time.Minute },
		"hash tag":    func(a *store.Claim) { a.Name = "}" },
	} {
		a := fine
		change(&a)
		_, err := s.Check(a)
		require.ErrorContains(t, err, says)
		require.Equal(t, a.Limit != 1, errors.Is(err, errors.ErrUnsupported))
	}
}

func FuzzBaseKey(f *testing.F) {
	f.Add(prefix, "orders")
	f.Add("{app}:", "{user:7}:cart")
	f.Add("{", "}")
	f.Fuzz(func(t *testing.T, prefix, name string) {
		if base, err := baseKey(prefix, name); err == nil {
			fits(t, prefix, base)
		} else {
			explained(t, err, name)
		}
	})
}

func TestHashTag(t *testing.T) {
	for key, want := range map[string]string{
		"": "", "a": "", "{a}": "a", "x{a}y": "a", "{a}{b}": "a", "{}": "", "{}{a}": "", "{{a}}": "{a", "a}b{c": "", "}{a}": "a",
	} {
		require.Equal(t, want, hashTag(key), key)
		require.Equal(t, want != "", tagged(key), key)
	}
}
