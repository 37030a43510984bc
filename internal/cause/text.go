package cause

import (
	"bytes"

	"lmwarden/internal/llmapi"
)

// text walks a JSON body, which llmapi has found to be valid, for the text that an
// engine reads. What is not valid is left early; it is never read beyond its end.
type text struct {
	body []byte
	cut  *cutter
}

// aside reports whether what stands behind a key is no text of a prompt: what is
// volatile, the model's thinking, and the format's own words.
func aside(key []byte) bool {
	switch string(key) {
	case "type", "role", "thinking", "signature", "encrypted_content":
		return true
	}
	return llmapi.Volatile(key)
}

// value walks over the value at i and returns its end. With take the text in it is
// cut into pieces.
func (t text) value(i int, take bool) (end int) {
	switch i = t.space(i); t.at(i) {
	case '"':
		end = t.string(i)
		if take {
			t.cut.run(t.body, i+1, end-1)
		}
		return end
	case '{':
		return t.members(i, func(key []byte, i int) int { return t.value(i, take && !aside(key)) })
	case '[':
		return t.elements(i, func(i int) int { return t.value(i, take) })
	}
	for end = i; end < len(t.body) && bytes.IndexByte([]byte(",]} \t\r\n"), t.body[end]) < 0; end++ {
	}
	if take && t.at(i) != 'n' { // null says nothing
		t.cut.run(t.body, i, end)
	}
	return end
}

// members calls each with the members of the object at i; it returns where the
// member's value ends.
func (t text) members(i int, each func(key []byte, i int) (end int)) (end int) {
	for i = t.space(i + 1); t.at(i) == '"'; {
		after := t.string(i)
		key := t.body[i+1 : max(i+1, after-1)]
		if i = t.space(after); t.at(i) != ':' {
			return i
		}
		if i = t.space(each(key, t.space(i+1))); t.at(i) != ',' {
			break
		}
		i = t.space(i + 1)
	}
	return min(i+1, len(t.body))
}

// elements calls each with the elements of the array at i; it returns where the
// element ends.
func (t text) elements(i int, each func(i int) (end int)) (end int) {
	for i = t.space(i + 1); i < len(t.body) && t.body[i] != ']'; {
		after := t.space(each(i))
		if i = after; t.at(i) != ',' {
			break
		}
		i = t.space(i + 1)
	}
	return min(i+1, len(t.body))
}

// string is the end of the string at i.
func (t text) string(i int) (end int) {
	for i++; ; i++ {
		n := bytes.IndexByte(t.body[min(i, len(t.body)):], '"')
		if n < 0 {
			return len(t.body)
		}
		escapes := 0
		for i += n; t.body[i-1-escapes] == '\\'; escapes++ {
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

func (t text) space(i int) int {
	for {
		switch t.at(i) {
		case ' ', '\t', '\r', '\n':
			i++
		default:
			return i
		}
	}
}

// at is the byte at i, 0 behind the end.
func (t text) at(i int) byte {
	if i < len(t.body) {
		return t.body[i]
	}
	return 0
}
