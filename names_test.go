package relock

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// slot is the cluster slot of a key, by the letter of the Redis Cluster specification and not by way of the library.
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

func TestTheSlotOfTheseTestsIsThatOfTheSpecification(t *testing.T) {
	for key, want := range map[string]uint16{
		// The check value of the CRC, and what CLUSTER KEYSLOT says.
		"123456789": 12739, "": 0, "foo": 12182, "user1000": 3443, "{user1000}.following": 3443, "{bar": 4015, "foo{{bar}}zap": 4015,
		"bar": 5061, "foo{bar}{zap}": 5061, "foo{}{bar}": 8363, "a}b{c": 13587, "{}x": 10595,
	} {
		require.Equal(t, want, slot(key), key)
	}
}

// oneSlot says that whatever belongs to a lock is in one slot, and within the prefix.
func oneSlot(t *testing.T, k *keys, prefix string) {
	t.Helper()
	want := slot(k.base)
	for _, key := range []string{k.queue, k.token, k.channel("0b7c0b5e-5b1c-4d0e-8a3f-1f2e3d4c5b6a"), k.channel("{}"), k.channel("}{x}")} {
		if slot(key) != want {
			t.Fatalf("%q and %q are in different slots", k.base, key)
		}
		if !strings.HasPrefix(key, k.base+":") {
			t.Fatalf("%q does not begin with %q", key, k.base)
		}
	}
	if !strings.HasPrefix(k.base, prefix) { // an ACL of ~prefix* is enough
		t.Fatalf("%q does not begin with %q", k.base, prefix)
	}
	if k.base == k.queue || k.queue == k.token || k.base == k.token {
		t.Fatalf("two keys are one: %+v", k)
	}
	require.Equal(t, [3]any{k.base, k.queue, k.token}, k.args, "what scripts are sent")
}

// explained says that a name was refused in words that help.
func explained(t *testing.T, err error, name string) {
	t.Helper()
	require.ErrorIs(t, err, ErrInvalid, "%q", name)
	require.Contains(t, err.Error(), "relock: invalid: ")
	for _, allowed := range []string{"are allowed", "must not end in", "must not begin with", "must have"} {
		if strings.Contains(err.Error(), allowed) {
			return
		}
	}
	require.Fail(t, "the message does not say what is allowed", "%q: %v", name, err)
}

// plainName is the name whose lock is the same: "{x}" is "x", where x alone would get that hash tag.
func plainName(name string) string {
	inner, ok := strings.CutPrefix(name, "{")
	if !ok {
		return name
	}
	if inner, ok = strings.CutSuffix(inner, "}"); !ok || inner == "" || hasTag(inner) || inner[0] == '}' {
		return name
	}
	return inner
}

// hasTag says, by the specification, whether a key has a hash tag.
func hasTag(key string) bool {
	open := strings.IndexByte(key, '{')
	return open >= 0 && strings.IndexByte(key[open+1:], '}') > 0
}

// apart says that two names with one prefix are two locks that have nothing in common, or one by the documented rule.
func apart(t *testing.T, a, b *keys) {
	t.Helper()
	if plainName(a.name) == plainName(b.name) {
		require.Equal(t, a.base, b.base, "%q and %q", a.name, b.name)
		return
	}
	for _, x := range []string{a.base, a.queue, a.token} {
		for _, y := range []string{b.base, b.queue, b.token} {
			if x == y {
				t.Fatalf("%q and %q share the key %q", a.name, b.name, x)
			}
		}
	}
	if a.channel("c") == b.channel("c") {
		t.Fatalf("%q and %q share their channels", a.name, b.name)
	}
}

func TestNamesWithBracesInEveryPosition(t *testing.T) {
	// All names of up to six characters of these, and what comes of them: some 4,000 of each prefix.
	alphabet := []string{"", "{", "}", "a", ":queue"}
	names := map[string]bool{}
	var build func(name string, left int)
	build = func(name string, left int) {
		names[name] = true
		for _, c := range alphabet[1:] {
			if left > 0 {
				build(name+c, left-1)
			}
		}
	}
	build("", 6)
	for _, prefix := range []string{DefaultPrefix, "", "{app}:", "{", "}", "a{", "{}", "{app", "x{}{y}"} {
		t.Run(prefix, func(t *testing.T) {
			owners := map[string]string{} // of each key: the plain name of the lock
			fine, bad := 0, 0
			for name := range names {
				k, err := newKeys(prefix, name)
				if err != nil {
					explained(t, err, name)
					bad++
					continue
				}
				fine++
				oneSlot(t, k, prefix)
				for _, key := range []string{k.base, k.queue, k.token} {
					if other, ok := owners[key]; ok {
						require.Equal(t, other, plainName(name), "%q belongs to two locks", key)
					}
					owners[key] = plainName(name)
				}
			}
			require.Positive(t, bad)
			if prefix != "{}" && prefix != "x{}{y}" { // there every name is refused: an empty tag comes first
				require.Greater(t, fine, bad)
			}
		})
	}
}

func TestRandomNamesAreApartAndInOneSlot(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	parts := []string{"{", "}", "{}", "a", "b", "x", "é", "\x00", "\xff", " ", "\n", "|", ":", ":queue", ":token", "step", "*", "?"}
	random := func() *keys {
		for {
			var name strings.Builder
			for range 1 + rng.IntN(6) {
				name.WriteString(parts[rng.IntN(len(parts))])
			}
			k, err := newKeys(DefaultPrefix, name.String())
			if err == nil {
				return k
			}
			explained(t, err, name.String())
		}
	}
	var before []*keys
	for range 2000 {
		k := random()
		oneSlot(t, k, DefaultPrefix)
		for range 20 {
			if len(before) > 0 {
				apart(t, k, before[rng.IntN(len(before))])
			}
		}
		before = append(before, k)
	}
}

func TestWhereALockIs(t *testing.T) {
	for name, base := range map[string]string{
		"orders:42":        "relock:{orders:42}",
		"{user:7}:cart":    "relock:{user:7}:cart",
		"cart:{user:7}":    "relock:cart:{user:7}",
		"{x}":              "relock:{x}",
		"x":                "relock:{x}",
		"a{b":              "relock:{a{b}",
		"a}b":              "relock:{a}b}",
		"{}x":              "", // its hash tag would be empty, or "{"
		"{":                "relock:{{}",
		"{{x}}":            "relock:{{x}}",
		"x:queue":          "relock:{x:queue}",
		"{x}:waiters":      "relock:{x}:waiters",
		"with space\n\x00": "relock:{with space\n\x00}",
	} {
		k, err := newKeys(DefaultPrefix, name)
		if base == "" {
			if err == nil {
				oneSlot(t, k, DefaultPrefix)
			}
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, base, k.base, name)
		require.Equal(t, base+":queue", k.queue)
		require.Equal(t, base+":token", k.token)
		require.Equal(t, base+":client", k.channel("client"))
		require.Equal(t, name, k.name)
	}
}

func TestNamesThatCannotBeUsedAreRefusedInWordsThatHelp(t *testing.T) {
	long := strings.Repeat("n", MaxNameLen)
	for _, c := range []struct {
		prefix, name string
		says         []string
	}{
		{DefaultPrefix, "", []string{"empty", "1 to 1024 bytes"}},
		{DefaultPrefix, long + "n", []string{"1025 bytes", "1024"}},
		{DefaultPrefix, strings.Repeat("é", MaxNameLen/2) + "x", []string{"1025 bytes"}},
		{DefaultPrefix, "}", []string{`"}"`, "begin"}},
		{DefaultPrefix, "}x", []string{`"}x"`, "begin"}},
		{DefaultPrefix, "{x}:queue", []string{`"{x}:queue"`, ":queue", ":token"}},
		{DefaultPrefix, "{x}:token", []string{`"{x}:token"`, ":queue", ":token"}},
		{DefaultPrefix, "a{x}b:queue", []string{":queue"}},
		// Here the name is fine, and the prefix is what must change.
		{"{}", "x", []string{"prefix", `"{}"`}},
		{"app{}:", "{x}", []string{"prefix", `"app{}:"`}},
	} {
		k, err := newKeys(c.prefix, c.name)
		require.Nil(t, k)
		explained(t, err, c.name)
		for _, word := range c.says {
			require.Contains(t, err.Error(), word)
		}
	}
	for _, name := range []string{"n", long, "{" + long[2:] + "}"} {
		k, err := newKeys(strings.Repeat("p", MaxNameLen), name)
		require.NoError(t, err)
		oneSlot(t, k, "p")
	}
}

func TestAWrongNameIsToldByTheLockAndByEveryMethod(t *testing.T) {
	l := &Lock{}
	l.keys, l.err = newKeys(DefaultPrefix, "")
	require.ErrorIs(t, l.Err(), ErrInvalid)
	ctx := t.Context()
	got, err := l.Lock(ctx)
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, ctx, got)
	_, err = l.TryLock(ctx)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = l.TryLockFor(ctx, 1)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, l.Unlock(ctx), ErrInvalid)
	require.ErrorIs(t, l.Extend(ctx, MinTTL), ErrInvalid)
	require.ErrorIs(t, l.ForceUnlock(ctx), ErrInvalid)
	_, err = l.State(ctx)
	require.ErrorIs(t, err, ErrInvalid)
	require.Zero(t, l.Token(ctx))
	require.Zero(t, l.Count(ctx))
	require.Zero(t, l.Remaining(ctx))
	require.False(t, l.Held(ctx))
}

func FuzzNameToKeys(f *testing.F) {
	for _, a := range []string{"x", "{x}", "}", "{", "{}", "}{", "a{b}c", "a{}b", "{x}:queue", "x:token", "{{x}}", "", "\xff", "a}b{c"} {
		for _, b := range []string{"x", "{x}", "{x}:queue", "x}{", "}:token{y}"} {
			f.Add(DefaultPrefix, a, b)
		}
		f.Add("", a, "x")
		f.Add("{", a, "{x}")
		f.Add("{app}", a, "}x")
		f.Add("a{}", a, "x")
	}
	f.Fuzz(func(t *testing.T, prefix, one, two string) {
		if len(prefix) > MaxNameLen {
			return // WithPrefix refuses it
		}
		var locks []*keys
		for _, name := range []string{one, two, "{" + one + "}", one + queueSuffix, one + ":" + two} {
			k, err := newKeys(prefix, name)
			if err != nil {
				require.Nil(t, k)
				explained(t, err, name)
				continue
			}
			require.NotEmpty(t, name)
			require.LessOrEqual(t, len(name), MaxNameLen)
			require.Equal(t, name, k.name)
			oneSlot(t, k, prefix)
			locks = append(locks, k)
		}
		for i, a := range locks {
			for _, b := range locks[:i] {
				apart(t, a, b)
			}
		}
	})
}

func TestHashTagIsTheOneOfTheSpecification(t *testing.T) {
	for key, want := range map[string]string{
		"": "", "a": "", "{": "", "}": "", "{}": "", "}{": "", "{a}": "a", "x{a}y": "a", "{a}{b}": "a", "{}{b}": "", "{{a}}": "{a",
		"}{a}": "a", "{a": "", "a}": "", "{a{b}c}": "a{b",
	} {
		require.Equal(t, want, hashTag(key), key)
		require.Equal(t, want != "", hasTag(key), key)
		if want == "" {
			want = key
		}
		require.Equal(t, want, (&hold{keys: keysAt("", key)}).tag(), "without a tag the whole key decides its slot")
	}
}

func TestAHolderIsReadFromItsHold(t *testing.T) {
	h := NewHolder()
	require.Equal(t, h, holderOf(h.newHold()))
	fresh, first := newHolderWithHold("x")
	require.Equal(t, fresh, holderOf(first))
	require.NotEqual(t, first, fresh.newHold())
	one, two := h.newHold(), h.newHold()
	require.NotEqual(t, one, two)
	require.Equal(t, 2, strings.Count(h.newHold(), ":"), fmt.Sprint(h))
	for hold, holder := range map[string]string{"": "", "x": "x", "x:": "x", "a:b:c": "a:b", ":": ""} {
		require.Equal(t, holder, holderOf(hold).String(), hold)
	}
}
