package main

// glob says whether name matches a pattern of Redis: * any text, ? any byte, [abc] [a-z] [^abc] a
// set, \x just x. As in Redis, a pattern is about bytes, and a set that is not closed reaches to
// the end. SCAN cannot match for relock, as a key has a name in one of two forms.
func glob(pattern, name string) bool {
	// After a mismatch the search goes on behind the last star, one byte further in the name.
	star, mark := -1, 0
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			star, mark = p+1, n
			p++
			continue
		}
		if next, ok := globByte(pattern, p, name[n]); ok {
			p = next
			n++
			continue
		}
		if star < 0 {
			return false
		}
		mark++
		p, n = star, mark
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// globByte matches one byte with the element at pattern[p:], no star, and returns the end of the
// element.
func globByte(pattern string, p int, c byte) (next int, ok bool) {
	if p >= len(pattern) {
		return p, false
	}
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
		return p + 1, pattern[p] == c
	case '[':
		return globSet(pattern, p+1, c)
	default:
		return p + 1, pattern[p] == c
	}
}

// globSet matches one byte with the set at pattern[p:], behind the bracket, and returns the end of
// the set.
func globSet(pattern string, p int, c byte) (next int, ok bool) {
	not := p < len(pattern) && pattern[p] == '^'
	if not {
		p++
	}
	in := false
	for p < len(pattern) && pattern[p] != ']' {
		switch {
		case pattern[p] == '\\' && p+1 < len(pattern):
			in = in || pattern[p+1] == c
			p += 2
		case p+2 < len(pattern) && pattern[p+1] == '-':
			low, high := min(pattern[p], pattern[p+2]), max(pattern[p], pattern[p+2])
			in = in || low <= c && c <= high
			p += 3
		default:
			in = in || pattern[p] == c
			p++
		}
	}
	if p < len(pattern) {
		p++
	}
	return p, in != not
}

// globEscape returns a pattern that matches only s.
func globEscape(s string) string {
	var b []byte
	for i := range len(s) {
		switch s[i] {
		case '*', '?', '[', ']', '\\', '^', '-':
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return string(b)
}
