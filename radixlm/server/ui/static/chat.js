// The chat playground: a conversation through /v1/chat/completions, with the timing of every answer.

import { events, getJson, postJson, Refused } from "./api.js";
import { find, html, seconds, whole } from "./dom.js";

const SETTINGS = "radixlm-chat";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export class Chat {
  constructor(onKeyNeeded) {
    this.onKeyNeeded = onKeyNeeded;
    this.history = [];
    this.model = null;
    this.running = null;
    this.form = find("settings-form");
    this.restore();
    if (window.matchMedia("(max-width: 860px)").matches) find("settings").open = false;
    this.form.addEventListener("change", () => sessionStorage.setItem(SETTINGS, JSON.stringify(this.settings())));
    find("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    find("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    find("prompt").addEventListener("input", fitPrompt);
    find("stop").addEventListener("click", () => this.running?.abort());
    find("reset").addEventListener("click", () => this.reset());
    this.welcome();
  }

  settings() {
    const fields = this.form.elements;
    const found = { system: fields.system.value, stream: fields.stream.checked };
    for (const name of NUMBERS) found[name] = fields[name].value;
    return found;
  }

  restore() {
    const saved = JSON.parse(sessionStorage.getItem(SETTINGS) ?? "{}");
    const fields = this.form.elements;
    for (const name of ["system", ...NUMBERS]) if (name in saved) fields[name].value = saved[name];
    if ("stream" in saved) fields.stream.checked = saved.stream;
  }

  body() {
    const settings = this.settings();
    const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    const body = { model: this.model, messages: [...system, ...this.history], stream: settings.stream };
    for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
    if (body.stream) body.stream_options = { include_usage: true };
    return body;
  }

  welcome() {
    find("messages").replaceChildren(html("p", { class: "empty" }, "Ask something. Every answer tells how long it took."));
  }

  reset() {
    this.running?.abort();
    this.history = [];
    this.welcome();
    find("prompt").focus();
  }

  add(role, text) {
    const body = html("div", { class: "body" }, text);
    const message = html("div", { class: `message ${role}` }, body);
    const host = find("messages");
    host.querySelector(".empty")?.remove();
    host.append(message);
    host.scrollTop = host.scrollHeight;
    return message;
  }

  async send() {
    const prompt = find("prompt");
    const text = prompt.value.trim();
    if (!text || this.running || !this.form.reportValidity()) return;
    prompt.value = "";
    fitPrompt();
    this.history.push({ role: "user", content: text });
    this.add("user", text);
    this.running = new AbortController();
    this.toggle(true);
    const answer = new Answer(this.add("assistant", ""));
    try {
      this.model ??= (await getJson("v1/models")).data[0].id;
      const response = await postJson("v1/chat/completions", this.body(), this.running.signal);
      if (this.settings().stream) for await (const event of events(response)) answer.event(event);
      else answer.whole(await response.json());
      answer.close();
    } catch (error) {
      answer.close(error.name === "AbortError" ? "stopped" : error.message);
      if (error instanceof Refused && error.status === 401) this.onKeyNeeded();
    }
    if (answer.text) this.history.push({ role: "assistant", content: answer.text });
    else this.history.pop();
    this.running = null;
    this.toggle(false);
  }

  toggle(busy) {
    find("send").hidden = busy;
    find("stop").hidden = !busy;
    if (!busy && !window.matchMedia("(pointer: coarse)").matches) find("prompt").focus();
  }
}

function fitPrompt() {
  const prompt = find("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

// One answer as it arrives. Times are the browser's: from sending the request.
class Answer {
  constructor(message) {
    this.message = message;
    this.target = message.querySelector(".body");
    this.text = "";
    this.thinking = "";
    this.usage = null;
    this.reason = null;
    this.began = performance.now();
    this.first = null;
  }

  event(event) {
    if (event.error) throw new Error(event.error.message ?? "the server reported an error");
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.take(choice.delta ?? {});
    this.reason = choice.finish_reason ?? this.reason;
  }

  whole(answer) {
    this.usage = answer.usage;
    this.take(answer.choices[0].message);
    this.reason = answer.choices[0].finish_reason;
  }

  take(piece) {
    if ((piece.content || piece.reasoning_content) && this.first === null) this.first = performance.now();
    const host = this.message.parentElement;
    const atEnd = host && host.scrollHeight - host.scrollTop - host.clientHeight < 60;
    if (piece.reasoning_content) this.think(piece.reasoning_content);
    if (piece.content) {
      this.text += piece.content;
      this.target.append(piece.content);
    }
    if (atEnd) host.scrollTop = host.scrollHeight;
  }

  think(text) {
    if (!this.thinking) {
      this.thought = html("div");
      this.message.prepend(html("details", { class: "thinking" }, html("summary", {}, "Thinking"), this.thought));
    }
    this.thinking += text;
    this.thought.append(text);
  }

  close(problem = null) {
    const now = performance.now();
    const total = (now - this.began) / 1000;
    const parts = [];
    if (this.first !== null) parts.push(`first token ${seconds((this.first - this.began) / 1000)}`);
    if (this.usage) {
      const outputs = this.usage.completion_tokens;
      const decode = (now - (this.first ?? now)) / 1000;
      if (outputs > 1 && decode > 0.001) parts.push(`${((outputs - 1) / decode).toFixed(1)} tokens/s`);
      const cached = this.usage.prompt_tokens_details?.cached_tokens;
      parts.push(`${whole(this.usage.prompt_tokens)}${cached ? ` (${whole(cached)} cached)` : ""} → ${whole(outputs)} tokens`);
    }
    parts.push(`${seconds(total)} in all`);
    if (this.reason === "length") parts.push("cut off at the longest answer");
    if (problem) parts.push(problem);
    if (!this.text && !this.thinking) this.target.remove();
    this.message.append(html("div", { class: problem && problem !== "stopped" ? "timing error" : "timing" }, parts.join(" · ")));
    const host = this.message.parentElement;
    if (host) host.scrollTop = host.scrollHeight;
  }
}
