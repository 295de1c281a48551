// The screens, in the order of the navigation. A screen: {path, title, key, group, needs, offered, open(view)}.
//   path    words of the address; those in braces are passed to the screen, as in "queues/{vhost}/{queue}"
//   key     the letter after "g" that opens it; screens without a key are not in the navigation
//   group   heading in the navigation
//   needs   tag that the user must have: "monitoring", "policymaker", "administrator"
//   offered (optional) function that returns whether the broker has what the screen shows

import { overview } from "./overview.js";
import { connections } from "./connections.js";
import { connection } from "./connection.js";
import { channels } from "./channels.js";
import { exchanges } from "./exchanges.js";
import { exchange } from "./exchange.js";
import { queues } from "./queues.js";
import { queue } from "./queue.js";
import { bindings } from "./bindings.js";
import { deadLetters } from "./dead_letters.js";
import { deadLetterQueue } from "./dead_letter_queue.js";
import { retained } from "./retained.js";
import { pipeline } from "./pipeline.js";
import { cluster } from "./cluster.js";
import { overlay } from "./overlay.js";
import { users } from "./users.js";
import { user } from "./user.js";
import { vhosts } from "./vhosts.js";
import { vhost } from "./vhost.js";
import { policies } from "./policies.js";
import { definitions } from "./definitions.js";

export const SCREENS = [
  overview, connections, connection, channels,
  exchanges, exchange, queues, queue, bindings, deadLetters, deadLetterQueue, retained,
  pipeline, cluster, overlay,
  users, user, vhosts, vhost, policies, definitions,
];
