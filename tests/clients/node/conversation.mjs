// A Node program that uses amqplib and asserts each step. Run by tests/clients/test_node.py:
//   AMQP_URL=amqp://... node --test conversation.mjs

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, afterEach, beforeEach, test } from 'node:test';
import amqp from 'amqplib';

const url = process.env.AMQP_URL;
const name = (suffix) => `node-${suffix}-${randomUUID()}`;

let connection;
let channel;

beforeEach(async () => {
  connection = await amqp.connect(url);
  channel = await connection.createChannel();
});

afterEach(async () => {
  await connection.close();
});

const behaviour = (title, body) => test(title, { timeout: 10_000 }, body);

const guard = setTimeout(() => {
  console.error('not within 40 s');
  process.exit(3);
}, 40_000);
after(() => clearTimeout(guard));

// Resolves with the first `count` messages of a queue; they stay unacked unless the options say noAck.
const take = (on, queue, count, options = {}) =>
  new Promise((resolve, reject) => {
    const messages = [];
    on.consume(
      queue,
      (message) => {
        messages.push(message);
        if (messages.length === count) resolve(messages);
      },
      options,
    ).catch(reject);
  });

const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));
const text = (message) => message.content.toString();
const closed = async (on) => {
  const error = await once(on, 'error');
  return [error.code, error.message];
};

behaviour('a confirm channel confirms each message, and all of them', async () => {
  const confirming = await connection.createConfirmChannel();
  const { queue } = await confirming.assertQueue('', { exclusive: true });
  await new Promise((resolve, reject) => {
    confirming.sendToQueue(queue, Buffer.from('first'), { persistent: true }, (error) => (error ? reject(error) : resolve()));
  });
  for (let number = 0; number < 500; number += 1) confirming.sendToQueue(queue, Buffer.from(`${number}`), { persistent: true });
  await confirming.waitForConfirms();
  assert.equal((await confirming.checkQueue(queue)).messageCount, 501);
});

behaviour('properties and headers of every type come back as they were', async () => {
  const { queue } = await channel.assertQueue('', { exclusive: true });
  const headers = {
    text: 'é',
    yes: true,
    nothing: null,
    small: 1,
    negative: -5,
    large: 2 ** 40,
    fraction: 1.5,
    bytes: Buffer.from([0, 255]),
    list: ['a', 2, [false]],
    nested: { deep: { deeper: 'x' } },
    time: { '!': 'timestamp', value: 1700000000 },
  };
  const properties = {
    contentType: 'application/json',
    contentEncoding: 'utf-8',
    correlationId: 'c',
    replyTo: 'r',
    messageId: 'm',
    type: 't',
    appId: 'a',
    userId: 'guest',
    priority: 3,
    timestamp: 1700000000,
    expiration: '60000',
  };
  channel.sendToQueue(queue, Buffer.from('{}'), { ...properties, persistent: true, headers });
  const [message] = await take(channel, queue, 1, { noAck: true });
  assert.deepEqual(message.properties.headers, headers);
  for (const [key, value] of Object.entries(properties)) assert.equal(message.properties[key], value, key);
  assert.equal(message.properties.deliveryMode, 2);
});

behaviour('prefetch holds messages back until there is an ack, for a consumer and for the channel', async () => {
  for (const global of [false, true]) {
    const on = await connection.createChannel();
    const { queue } = await on.assertQueue('', { exclusive: true });
    await on.prefetch(2, global);
    for (let number = 0; number < 5; number += 1) on.sendToQueue(queue, Buffer.from(`${number}`));
    const got = [];
    const { consumerTag } = await on.consume(queue, (message) => got.push(message));
    while (got.length < 2) await new Promise(setImmediate);
    assert.equal((await on.checkQueue(queue)).messageCount, 3);
    assert.equal(got.length, 2);
    on.ack(got[1], true);
    while (got.length < 4) await new Promise(setImmediate);
    assert.equal((await on.checkQueue(queue)).messageCount, 1);
    await on.cancel(consumerTag);
    on.nackAll(true);
    assert.equal((await on.checkQueue(queue)).messageCount, 3);
    const again = await on.get(queue);
    assert.deepEqual([text(again), again.fields.redelivered, again.fields.messageCount], ['2', true, 2]);
    await on.close();
  }
});

behaviour('an exclusive queue is refused to another connection, and goes with its own', async () => {
  const queue = name('exclusive');
  await channel.assertQueue(queue, { exclusive: true });
  const other = await amqp.connect(url);
  const on = await other.createChannel();
  const error = closed(on);
  await assert.rejects(on.checkQueue(queue), /RESOURCE-LOCKED/);
  assert.match((await error)[1], /cannot obtain exclusive access to locked queue/);
  await connection.close();
  const later = await other.createChannel();
  const missing = closed(later);
  await assert.rejects(later.checkQueue(queue), /NOT-FOUND/);
  assert.equal((await missing)[0], 404);
  await other.close();
  connection = await amqp.connect(url);
});

behaviour('a request is answered through direct reply-to', async () => {
  const { queue } = await channel.assertQueue('', { exclusive: true });
  const server = await connection.createChannel();
  await server.consume(queue, (request) => {
    server.sendToQueue(request.properties.replyTo, Buffer.from(text(request).toUpperCase()), {
      correlationId: request.properties.correlationId,
    });
    server.ack(request);
  });
  const answers = take(channel, 'amq.rabbitmq.reply-to', 3, { noAck: true });
  for (const word of ['a', 'b', 'c']) {
    channel.sendToQueue(queue, Buffer.from(word), { replyTo: 'amq.rabbitmq.reply-to', correlationId: word });
  }
  const got = (await answers).map((answer) => [answer.properties.correlationId, text(answer)]);
  assert.deepEqual(got, [['a', 'A'], ['b', 'B'], ['c', 'C']]);
});

behaviour('a mandatory message without a queue comes back before its confirm', async () => {
  const confirming = await connection.createConfirmChannel();
  const seen = [];
  confirming.on('return', (message) => seen.push([message.fields.replyCode, message.fields.replyText, text(message)]));
  await new Promise((resolve) => {
    confirming.publish('amq.topic', name('nowhere'), Buffer.from('back'), { mandatory: true }, () => {
      seen.push('confirmed');
      resolve();
    });
  });
  assert.deepEqual(seen, [[312, 'NO_ROUTE', 'back'], 'confirmed']);
});

behaviour('a nacked message goes to the dead-letter exchange with its history', async () => {
  const dead = await channel.assertQueue('', { exclusive: true });
  const { queue } = await channel.assertQueue('', {
    exclusive: true,
    deadLetterExchange: '',
    deadLetterRoutingKey: dead.queue,
  });
  channel.sendToQueue(queue, Buffer.from('again'));
  const [first] = await take(channel, queue, 1);
  channel.nack(first, false, false);
  const [message] = await take(channel, dead.queue, 1, { noAck: true });
  const [death] = message.properties.headers['x-death'];
  assert.deepEqual([death.reason, death.queue, death.count], ['rejected', queue, 1]);
  assert.equal(message.properties.headers['x-first-death-reason'], 'rejected');
});

behaviour('an expired message goes to the dead-letter exchange', async () => {
  const dead = await channel.assertQueue('', { exclusive: true });
  const { queue } = await channel.assertQueue('', {
    exclusive: true,
    messageTtl: 20,
    expires: 60_000,
    deadLetterExchange: '',
    deadLetterRoutingKey: dead.queue,
  });
  channel.sendToQueue(queue, Buffer.from('late'));
  const [message] = await take(channel, dead.queue, 1, { noAck: true });
  assert.equal(message.properties.headers['x-death'][0].reason, 'expired');
});

behaviour('requeued messages come again, marked; priorities come first', async () => {
  const { queue } = await channel.assertQueue('', { exclusive: true, maxPriority: 10 });
  for (const priority of [0, 5, 10]) channel.sendToQueue(queue, Buffer.from(`${priority}`), { priority });
  await channel.checkQueue(queue);
  const first = await channel.get(queue);
  assert.equal(text(first), '10');
  channel.nack(first);
  await channel.prefetch(1);
  const order = [];
  await new Promise((resolve) => {
    channel.consume(queue, (message) => {
      order.push([text(message), message.fields.redelivered]);
      channel.ack(message);
      if (order.length === 3) resolve();
    });
  });
  assert.deepEqual(order, [['10', true], ['5', false], ['0', false]]);
});

behaviour('an alternate exchange takes what its exchange cannot route; exchanges are bound to exchanges', async () => {
  const [source, alternate, target] = [name('source'), name('alternate'), name('target')];
  const fleeting = { durable: false, autoDelete: true };
  await channel.assertExchange(alternate, 'fanout', fleeting);
  await channel.assertExchange(target, 'topic', fleeting);
  await channel.assertExchange(source, 'direct', { ...fleeting, alternateExchange: alternate });
  const lost = await channel.assertQueue('', { exclusive: true });
  const found = await channel.assertQueue('', { exclusive: true });
  await channel.bindQueue(lost.queue, alternate, '');
  await channel.bindQueue(found.queue, target, 'a.*');
  await channel.bindExchange(target, source, 'a.b');
  channel.publish(source, 'a.b', Buffer.from('found'));
  channel.publish(source, 'z', Buffer.from('lost'));
  assert.equal(text((await take(channel, found.queue, 1, { noAck: true }))[0]), 'found');
  assert.equal(text((await take(channel, lost.queue, 1, { noAck: true }))[0]), 'lost');
  await channel.unbindExchange(target, source, 'a.b');
});

behaviour('a headers exchange matches all or any', async () => {
  const { queue } = await channel.assertQueue('', { exclusive: true });
  await channel.bindQueue(queue, 'amq.headers', '', { 'x-match': 'all', node: queue, kind: 'a' });
  for (const kind of ['a', 'b']) channel.publish('amq.headers', '', Buffer.from(kind), { headers: { node: queue, kind } });
  await channel.checkQueue(queue);
  assert.equal(text(await channel.get(queue, { noAck: true })), 'a');
  assert.equal(await channel.get(queue), false);
});

behaviour('an error closes the channel with its code, and the connection goes on', async () => {
  const broken = await connection.createChannel();
  const { queue } = await broken.assertQueue(name('once'), { exclusive: true });
  const error = closed(broken);
  await assert.rejects(broken.assertQueue(queue, { exclusive: true, maxLength: 1 }), /PRECONDITION-FAILED/);
  assert.match((await error)[1], /inequivalent arg 'x-max-length' for queue/);
  assert.equal((await channel.checkQueue(queue)).queue, queue);
});

behaviour('a consumer hears of its queue being deleted', async () => {
  const { queue } = await channel.assertQueue('', { exclusive: true });
  const cancelled = new Promise((resolve) => {
    channel.consume(queue, resolve).then(() => channel.deleteQueue(queue));
  });
  assert.equal(await cancelled, null);
});

behaviour('a connection that is closed while frames are queued ends without an error', async () => {
  for (let round = 0; round < 5; round += 1) {
    const closing = await amqp.connect(url);
    const errors = [];
    closing.on('error', (error) => errors.push(error));
    const on = await closing.createChannel();
    on.on('error', (error) => errors.push(error));
    const { queue } = await on.assertQueue('', { exclusive: true });
    for (let number = 0; number < 2000; number += 1) on.sendToQueue(queue, Buffer.alloc(2000));
    const ended = once(closing, 'close');
    await closing.close();
    await ended;
    assert.deepEqual(errors, []);
  }
});

behaviour('what is published before a method reaches the consumer that waits first', async () => {
  const { queue } = await channel.assertQueue('', { exclusive: true });
  const got = [];
  const send = (word) => channel.sendToQueue(queue, Buffer.from(word));
  const expected = [];
  for (let round = 0; round < 50; round += 1) {
    const { consumerTag } = await channel.consume(queue, (message) => got.push(text(message)), { noAck: true });
    send('get');
    const fetched = channel.get(queue);
    send('count');
    const counted = channel.checkQueue(queue);
    send('purge');
    const purged = channel.purgeQueue(queue);
    send('cancel');
    const cancelled = channel.cancel(consumerTag);
    assert.equal(await fetched, false);
    assert.equal((await counted).messageCount, 0);
    assert.equal((await purged).messageCount, 0);
    await cancelled;
    expected.push('get', 'count', 'purge', 'cancel');
    assert.deepEqual(got, expected);
  }
});

behaviour('frames of 4096 bytes, the least there may be, carry large bodies both ways', async () => {
  const small = await amqp.connect(`${url}?frameMax=4096&heartbeat=1`);
  const on = await small.createConfirmChannel();
  const { queue } = await on.assertQueue('', { exclusive: true });
  const body = Buffer.alloc(100_000, 'slot');
  on.sendToQueue(queue, body, { headers: { text: 'x'.repeat(3000) } });
  await on.waitForConfirms();
  const [message] = await take(on, queue, 1, { noAck: true });
  assert.ok(message.content.equals(body));
  assert.equal(message.properties.headers.text.length, 3000);
  await small.close();
});

behaviour('a connection with heartbeats stays up while nothing is said', async () => {
  const beating = await amqp.connect(`${url}?heartbeat=1`);
  let failure = null;
  beating.on('error', (error) => {
    failure = error;
  });
  await new Promise((resolve) => setTimeout(resolve, 3200));
  assert.equal(failure, null);
  assert.ok(await beating.createChannel());
  await beating.close();
});
