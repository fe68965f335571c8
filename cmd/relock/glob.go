package main

import (
	"fmt"
	"regexp"
	"strings"
)

// glob returns the matcher of a pattern of Redis: * any text, ? any byte, [abc] [a-z] [^abc] a set,
// \x just x. As in Redis, a pattern is about bytes, and a set that is not closed reaches to the
// end. SCAN cannot match for relock, as a key has a name in one of two forms.
func glob(pattern string) (matches func(name string) bool) {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for p := 0; p < len(pattern); p++ {
		switch pattern[p] {
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteString(".")
		case '[':
			var class string
			class, p = globSet(pattern, p+1)
			b.WriteString(class)
		case '\\':
			p = min(p+1, len(pattern)-1)
			fallthrough
		default:
			fmt.Fprintf(&b, `\x%02x`, pattern[p])
		}
	}
	b.WriteString(`\z`)
	expression := regexp.MustCompile(b.String())
	return func(name string) bool { return expression.MatchString(latin1(name)) }
}

// globSet returns the class of the set at pattern[p:], behind the bracket, and the end of the set.
func globSet(pattern string, p int) (class string, end int) {
	class = "["
	if p < len(pattern) && pattern[p] == '^' {
		class += "^"
		p++
	}
	class += `\x{100}` // no byte, as a class must not be empty
	for ; p < len(pattern) && pattern[p] != ']'; p++ {
		low, high := pattern[p], pattern[p]
		switch {
		case low == '\\' && p+1 < len(pattern):
			p++
			low, high = pattern[p], pattern[p]
		case p+2 < len(pattern) && pattern[p+1] == '-':
			p += 2
			low, high = min(low, pattern[p]), max(low, pattern[p])
		}
		class += fmt.Sprintf(`\x%02x-\x%02x`, low, high)
	}
	return class + "]", p
}

// latin1 returns a text with a character for each byte, as regular expressions are about
// characters.
func latin1(s string) string {
	runes := make([]rune, len(s))
	for i := range len(s) {
		runes[i] = rune(s[i])
	}
	return string(runes)
}

// special matches what has a meaning in a pattern.
var special = regexp.MustCompile(`[*?\[\]\\^-]`)

// globEscape returns a pattern that matches only s.
func globEscape(s string) string { return special.ReplaceAllString(s, `\$0`) }
