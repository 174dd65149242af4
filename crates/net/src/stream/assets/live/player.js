// Plays a track: demuxes what a subscription gives and hands it to picture and sound.

import { Clock, Timeline } from "./clock.js";
import { Demuxer } from "./demuxer.js";
import { Pictures, Sounds } from "./formats.js";
import { Picture } from "./picture.js";
import { Sound } from "./sound.js";

export class Player {
  constructor(canvas) {
    this.clock = new Clock();
    this.timeline = new Timeline(this.clock);
    this.picture = new Picture(canvas, this.clock);
    this.sound = new Sound(this.clock);
    // The kinds of picture and sound that the tables name.
    this.named = null;
    this.arrivedAt = null;
    this.apartSince = null;
    const receiver = {
      program: (named) => this.program(named),
      picture: (unit) => this.pictureUnit(unit),
      sound: (unit) => this.soundUnit(unit),
    };
    this.demuxer = new Demuxer(receiver);
  }

  // A session begins.
  begin() {
    this.lastGroup = null;
    this.clock.begin();
  }

  // A group begins. If one is missing, decoding begins again with this one.
  group(sequence) {
    if (this.lastGroup === null || sequence !== this.lastGroup + 1) {
      this.demuxer.gap();
      this.picture.gap();
      this.sound.gap();
    }
    this.lastGroup = sequence;
  }

  packets(bytes) {
    this.arrivedAt = performance.now();
    this.demuxer.push(bytes, this.arrivedAt);
  }

  program(named) {
    this.named = named;
    this.pictures = named.picture?.codec ? new Pictures(named.picture.codec) : null;
    this.sounds = named.sound?.codec ? new Sounds(named.sound.codec) : null;
    this.apartSince = null;
    this.picture.restart(this.pictures !== null);
    this.sound.restart();
  }

  pictureUnit(unit) {
    const coded = this.pictures.read(unit.bytes);
    if (coded === null) return;
    const now = performance.now();
    const times = this.timeline.picture(unit, coded.isKey, now);
    if (times === null) return;
    this.clock.arrived(times.decoded, true, now);
    this.picture.push({ ...coded, shown: times.shown, arrived: unit.arrived }, now);
  }

  soundUnit(unit) {
    const now = performance.now();
    this.sounds.read(unit).forEach((frame, index) => {
      const shown = this.timeline.sound(frame.time, now);
      if (shown === null) {
        this.apartSince ??= now;
        return;
      }
      this.apartSince = null;
      if (index === 0) this.clock.arrived(shown, this.timeline.isLedBySound(now), now);
      this.sound.push({ ...frame, shown });
    });
  }

  tick(now) {
    this.picture.tick(now);
    this.sound.tick(now);
  }

  // Says in plain words which parts of the stream it cannot play, or null.
  problem(now) {
    if (!this.named) return null;
    const said = [];
    for (const kind of [this.named.picture, this.named.sound]) {
      if (kind && !kind.codec) said.push(`This page does not play ${kind.name}.`);
    }
    if (!this.named.picture) said.push("The stream has no picture.");
    said.push(this.picture.problem, this.sound.problem);
    if (this.apartSince !== null && now - this.apartSince > 2000) {
      said.push("The sound's time stamps are far from the picture's, so the sound waits.");
    }
    return said.filter(Boolean).join(" ") || null;
  }
}
