// One connection: its client, the negotiated values, and its channels.

import { button, h, put } from "../parts/dom.js";
import { get } from "../parts/api.js";
import { draining, mayDrain } from "../parts/draining.js";
import { bytes, count, duration, many, moment, value, yesNo } from "../parts/format.js";
import { card, facts, figures, notice, state } from "../parts/panels.js";
import { go } from "../parts/router.js";
import { paged } from "../parts/rows.js";
import { table } from "../parts/table.js";
import { CHANNEL_COLUMNS } from "./channels.js";
import { closing, nameOf, productOf } from "./connections.js";

export const connection = { path: "connections/{name}", title: "Connection", open };

async function open(view) {
  const { name } = view.words;
  const words = ["connections", name];
  view.title(["Connections", ["connections"]], name);
  let row = await get(words, {}, view.signal);
  const shown = figures([
    { name: "state", label: "State" },
    { name: "in", label: "Received", unit: "/s", noted: true },
    { name: "out", label: "Sent", unit: "/s", noted: true },
    { name: "channels", label: "Channels" },
  ]);
  const about = h("div", { class: "columns-2" });
  const gone = h("div", { hidden: true });
  const lost = h("div", { hidden: !row.publishes_lost });
  const show = () => {
    shown.set("state", value(row.state));
    shown.set("in", bytes(row.recv_oct_details?.rate), `${bytes(row.recv_oct)} in all`);
    shown.set("out", bytes(row.send_oct_details?.rate), `${bytes(row.send_oct)} in all`);
    shown.set("channels", count(row.channels));
    lost.hidden = !row.publishes_lost;
    put(lost, notice("warn", `${many(row.publishes_lost ?? 0, "message")} lost`, "A full queue or an alarm refused them. The client is not notified, because it publishes without confirms."));
    const stamp = JSON.stringify([row.state, row.client_properties]);
    if (about.stamp === stamp) return;
    about.stamp = stamp;
    const { capabilities, ...properties } = row.client_properties ?? {};
    put(
      about,
      card("Connection", facts([
        ["Name", nameOf(row)], ["State", state(row.state)], ["User", row.user], ["Vhost", row.vhost], ["Client", productOf(row)], ["From", `${row.peer_host}:${row.peer_port}`], ["To", `${row.host}:${row.port}`],
        ["Protocol", row.protocol], ["TLS", row.ssl ? [row.ssl_protocol, row.ssl_cipher].filter(Boolean).join(", ") || "yes" : yesNo(row.ssl)], ["Login by", row.auth_mechanism],
        ...(row.mqtt ? [] : [["Heartbeat", row.timeout === 0 ? "none" : duration(row.timeout * 1000)], ["Largest frame", bytes(row.frame_max)], ["Channels at most", count(row.channel_max)]]), ["Since", moment(row.connected_at)],
      ])),
      row.mqtt ? card("MQTT session", facts([
        ["Client id", row.mqtt.client_id], ["Keep alive", row.mqtt.keep_alive_s === 0 ? "none" : duration(row.mqtt.keep_alive_s * 1000)], ["Clean start", yesNo(row.mqtt.clean_start)],
        ["Session lasts", row.mqtt.session_expiry_s === 0 ? "as long as the connection" : duration(row.mqtt.session_expiry_s * 1000)],
        ["Will", row.mqtt.will_topic === null ? "none" : `${row.mqtt.will_topic}, QoS ${row.mqtt.will_qos}${row.mqtt.will_retain ? ", retained" : ""}`],
      ])) : "",
      card("What the client says of itself", facts([...Object.entries(properties), ["capabilities", Object.entries(capabilities ?? {}).filter(([, on]) => on).map(([label]) => label).join(", ")]])),
    );
  };
  const list = table(view, { noun: "channel", filter: false, prefix: "c", empty: "No open channel", id: (one) => one.name, columns: CHANNEL_COLUMNS.filter((column) => !["user", "vhost"].includes(column.key)), source: paged([...words, "channels"]) });
  view.show(gone, lost, h("div", { class: "row" }, h("h1", {}, nameOf(row) || name), h("span", { class: "push" }), mayDrain() && button("Drain…", "quiet", () => draining("Drain this connection?", "It receives no more messages, can settle its messages, and is then closed. Most clients reconnect automatically.", { connection: name })), button("Close…", "quiet bad", async () => (await closing([row])) && go(["connections"]))), shown.element, h("h2", {}, "Channels"), list.element, about);
  show();
  view.onTick(async () => {
    try {
      row = await get(words, {}, view.signal);
      gone.hidden = true;
      show();
    } catch (error) {
      if (error.status !== 404) throw error;
      put(gone, notice("plain", "This connection is closed", "The page shows its last known state."));
      gone.hidden = false;
    }
  });
}
