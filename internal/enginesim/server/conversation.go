package server

import (
	"encoding/json"
	"fmt"
	"strings"
)

// message is one turn of a conversation as the chat template sees it, whatever dialect
// it came in.
type message struct {
	role    string
	content string
	calls   []toolCall
}

// part is one element of a content list, in any of the dialects.
type part struct {
	Type string `json:"type"`
	Text string `json:"text"`

	// Anthropic's tool_use and tool_result.
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Content json.RawMessage `json:"content"`
}

// texts returns the pieces of text of a content field, which is a string, null or a list of
// parts. Images and other parts without text are left out: the simulated model cannot see.
func texts(content json.RawMessage) []string {
	var one string
	if json.Unmarshal(content, &one) == nil {
		if one == "" {
			return nil
		}
		return []string{one}
	}
	var parts []part
	if json.Unmarshal(content, &parts) != nil {
		return nil
	}
	var found []string
	for _, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text", "refusal", "":
			found = append(found, p.Text)
		}
	}
	return found
}

// joined is the text of a content field as the template prints it.
func joined(content json.RawMessage) string { return strings.Join(texts(content), "\n") }

// chatMessages reads the messages of /v1/chat/completions.
func chatMessages(raw []json.RawMessage) ([]message, *apiError) {
	messages := make([]message, 0, len(raw))
	for i, r := range raw {
		var m struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
			Calls   []struct {
				Function struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		}
		if json.Unmarshal(r, &m) != nil || m.Role == "" {
			return nil, malformedMember("messages", i, r)
		}
		out := message{role: m.Role, content: joined(m.Content)}
		for _, c := range m.Calls {
			out.calls = append(out.calls, toolCall{c.Function.Name, c.Function.Arguments})
		}
		messages = append(messages, out)
	}
	return messages, nil
}

func chatTools(raw []json.RawMessage) []tool {
	var tools []tool
	for _, r := range raw {
		var t struct {
			Function *functionTool `json:"function"`
		}
		if json.Unmarshal(r, &t) == nil && t.Function != nil {
			tools = append(tools, t.Function.tool())
		}
	}
	return tools
}

// functionTool is a function as OpenAI's dialects declare it.
type functionTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

func (f functionTool) tool() tool {
	t := tool{name: f.Name, parameters: f.Parameters}
	if f.Description != nil {
		t.description = *f.Description
	}
	return t
}

// billingHeader begins a system block that Claude Code puts first and that the engine drops,
// since it differs between requests.
const billingHeader = "x-anthropic-billing-header"

// anthropicMessages reads system and messages of /v1/messages: the blocks of the system prompt
// are joined without a separator, a tool result becomes a message before the user text of
// its turn, thinking is dropped.
func anthropicMessages(system json.RawMessage, raw []json.RawMessage) ([]message, *apiError) {
	var messages []message
	var prompt strings.Builder
	for _, t := range texts(system) {
		if !strings.HasPrefix(t, billingHeader) {
			prompt.WriteString(t)
		}
	}
	if prompt.Len() > 0 {
		messages = append(messages, message{role: "system", content: prompt.String()})
	}
	for i, r := range raw {
		var m struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(r, &m) != nil {
			return nil, malformedMember("messages", i, r)
		}
		switch m.Role {
		case "user", "assistant", "system":
		default:
			loc := fmt.Sprintf("body.messages.%d.role", i)
			return nil, invalid(loc, fmt.Sprintf("'type': 'literal_error', 'loc': '%s', "+
				`'msg': "Input should be 'user', 'assistant' or 'system'", 'input': '%s', `+
				`'ctx': {'expected': "'user', 'assistant' or 'system'"}`, loc, m.Role))
		}
		out := message{role: m.Role}
		var parts []part
		if json.Unmarshal(m.Content, &parts) != nil {
			out.content = joined(m.Content)
			messages = append(messages, out)
			continue
		}
		var said []string
		results := 0
		for _, p := range parts {
			switch p.Type {
			case "text":
				if !(m.Role == "system" && strings.HasPrefix(p.Text, billingHeader)) {
					said = append(said, p.Text)
				}
			case "tool_use":
				arguments := "{}"
				if len(p.Input) > 0 {
					arguments = string(p.Input)
				}
				out.calls = append(out.calls, toolCall{p.Name, arguments})
			case "tool_result":
				messages = append(messages, message{role: "tool", content: joined(p.Content)})
				results++
			}
		}
		out.content = strings.Join(said, "\n")
		if results > 0 && out.content == "" {
			continue
		}
		messages = append(messages, out)
	}
	return messages, nil
}

func anthropicTools(raw []json.RawMessage) []tool {
	var tools []tool
	for _, r := range raw {
		var t struct {
			functionTool
			InputSchema json.RawMessage `json:"input_schema"`
		}
		if json.Unmarshal(r, &t) == nil && t.Name != "" && len(t.InputSchema) > 0 {
			t.Parameters = t.InputSchema
			tools = append(tools, t.tool())
		}
	}
	return tools
}

// responsesMessages reads instructions and input of /v1/responses. Reasoning and items the
// engine has no message for are dropped.
func responsesMessages(instructions string, input json.RawMessage) ([]message, *apiError) {
	var messages []message
	if instructions != "" {
		messages = append(messages, message{role: "system", content: instructions})
	}
	var text string
	if json.Unmarshal(input, &text) == nil {
		return append(messages, message{role: "user", content: text}), nil
	}
	var items []json.RawMessage
	if json.Unmarshal(input, &items) != nil {
		return nil, invalid("body.input", "'type': 'list_type', 'loc': 'body.input', 'msg': 'Input should be a valid list', 'input': '"+
			pythonInput(input)+"'")
	}
	for i, r := range items {
		var item struct {
			Type      string          `json:"type"`
			Role      string          `json:"role"`
			Content   json.RawMessage `json:"content"`
			Name      string          `json:"name"`
			Arguments string          `json:"arguments"`
			Output    json.RawMessage `json:"output"`
		}
		if json.Unmarshal(r, &item) != nil {
			return nil, malformedMember("input", i, r)
		}
		switch {
		case item.Type == "message" || item.Type == "" && item.Role != "":
			messages = append(messages, message{role: item.Role, content: joined(item.Content)})
		case item.Type == "function_call":
			messages = append(messages, message{role: "assistant", calls: []toolCall{{item.Name, item.Arguments}}})
		case item.Type == "function_call_output":
			messages = append(messages, message{role: "tool", content: joined(item.Output)})
		}
	}
	return messages, nil
}

func responsesTools(raw []json.RawMessage) []tool {
	var tools []tool
	for _, r := range raw {
		var t functionTool
		if json.Unmarshal(r, &t) == nil && t.Type == "function" {
			tools = append(tools, t.tool())
		}
	}
	return tools
}

// malformedMember refuses an element of a list that is not an object of the right fields.
func malformedMember(list string, i int, raw json.RawMessage) *apiError {
	loc := fmt.Sprintf("body.%s.%d", list, i)
	return invalid(loc, fmt.Sprintf("'type': 'dict_type', 'loc': '%s', 'msg': 'Input should be a valid dictionary', 'input': '%s'",
		loc, pythonInput(raw)))
}
